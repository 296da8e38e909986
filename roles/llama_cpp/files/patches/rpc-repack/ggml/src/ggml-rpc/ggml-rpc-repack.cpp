// SPDX-License-Identifier: GPL-3.0-or-later
#include "ggml-rpc-repack.h"

#include "ggml-impl.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

// A weight that is put back or comes anew more often than this stays as it is: packing it would cost more than it gives.
static constexpr int MAX_CHANGES = 3;
// So much is packed at once, which the caches of a core hold.
static constexpr size_t SLICE_BYTES = 256 * 1024;
// More rows than any kernel interleaves, and more than is in as many rows of any model.
static constexpr int    MAX_ROWS        = 32;
static constexpr size_t MAX_GROUP_BYTES = 16 * 1024 * 1024;

//
// Layouts
//

// How a kernel wants a type. A unit is a block of each of `rows` rows; a group of rows is its units one after another.
// Packing only moves the bits of a unit and inverts some, as is measured below; so it can be undone.
struct rpc_repack_layout {
    ggml_type             type;
    void *                extra;  // what the CPU back end knows the layout by
    std::string           name;
    int64_t               rows;
    size_t                unit;      // bytes
    std::vector<uint32_t> bit_from;  // of each bit of the blocks, row after row: where it is in the packed unit
    std::vector<int32_t>  byte_from; // the same for bytes that stay whole; -1 for the others
    std::vector<uint8_t>  inverted;  // bits of the packed unit
};

// The CPU back end logs each packing as a debug message, which nobody has asked for; it names the layout.
class quiet {
  public:
    quiet() {
        ggml_log_get(&callback, &user_data);
        ggml_log_set(take, this);
    }

    ~quiet() { ggml_log_set(callback, user_data); }

    std::string last;

  private:
    static void take(enum ggml_log_level level, const char * text, void * user_data) {
        quiet * self = static_cast<quiet *>(user_data);
        if (level == GGML_LOG_LEVEL_DEBUG) {
            self->last = text;
        } else {
            self->callback(level, text, self->user_data);
        }
    }

    ggml_log_callback callback;
    void *            user_data;
};

namespace {

struct kernels {
    ggml_backend_dev_t         device  = nullptr;  // the CPU
    ggml_backend_buffer_type_t plain   = nullptr;  // its buffer type for clients
    ggml_backend_buffer_t      carrier = nullptr;  // a buffer of the type "CPU_REPACK": packed tensors name it as theirs
    bool                       enabled = false;
    std::string                status_path;
    std::string                invocation;  // systemd's name for this start of the unit
    std::vector<std::unique_ptr<rpc_repack_layout>> layouts;

    ggml_tensor tensor(ggml_type type, int64_t columns, int64_t rows, void * data) const;
    void *      extra_for(ggml_tensor tensor) const;
    void        pack(const rpc_repack_layout & l, int64_t columns, int64_t rows, const uint8_t * from, uint8_t * to) const;
    void unpack(const rpc_repack_layout & l, int64_t columns, int64_t rows, const uint8_t * from, uint8_t * to) const;
    bool measure(rpc_repack_layout & l) const;
    void find_layouts();
    void write_status(size_t n, size_t bytes, size_t of_n, size_t of_bytes) const;
};

}  // namespace

static kernels & the() {
    static kernels instance;
    return instance;
}

ggml_tensor kernels::tensor(ggml_type type, int64_t columns, int64_t rows, void * data) const {
    ggml_tensor t = {};
    t.type        = type;
    t.buffer      = carrier;
    t.data        = data;
    t.ne[0]       = columns;
    t.ne[1]       = rows;
    t.ne[2] = t.ne[3] = 1;
    t.nb[0]           = ggml_type_size(type);
    t.nb[1]           = ggml_row_size(type, columns);
    t.nb[2] = t.nb[3] = t.nb[1] * rows;
    return t;
}

// The back end decides by type and shape, and by what the CPU can.
void * kernels::extra_for(ggml_tensor tensor) const {
    tensor.buffer = carrier;
    tensor.extra  = nullptr;
    ggml_backend_buffer_init_tensor(carrier, &tensor);
    return tensor.extra;
}

void kernels::pack(
    const rpc_repack_layout & l, int64_t columns, int64_t rows, const uint8_t * from, uint8_t * to) const {
    ggml_tensor t = tensor(l.type, columns, rows, to);
    t.extra       = l.extra;
    ggml_backend_tensor_set(&t, from, 0, ggml_nbytes(&t));
}

void kernels::unpack(
    const rpc_repack_layout & l, int64_t columns, int64_t rows, const uint8_t * from, uint8_t * to) const {
    const size_t  block    = ggml_type_size(l.type);
    const size_t  row_size = ggml_row_size(l.type, columns);
    const int64_t n_blocks = columns / ggml_blck_size(l.type);
    for (int64_t group = 0; group < rows / l.rows; group++, to += l.rows * row_size) {
        for (int64_t x = 0; x < n_blocks; x++, from += l.unit) {
            for (size_t i = 0; i < l.unit; i++) {
                uint8_t byte = 0;
                if (l.byte_from[i] >= 0) {
                    byte = from[l.byte_from[i]] ^ l.inverted[l.byte_from[i]];
                } else {
                    for (int bit = 0; bit < 8; bit++) {
                        const uint32_t at = l.bit_from[8 * i + bit];
                        byte |= ((from[at / 8] ^ l.inverted[at / 8]) >> at % 8 & 1) << bit;
                    }
                }
                to[i / block * row_size + x * block + i % block] = byte;
            }
        }
    }
}

// Finds where packing puts each bit of a unit: the numbers of the bits are packed, one binary digit of all at a time.
// Returns whether what is put back is what was packed, on several units of several groups.
bool kernels::measure(rpc_repack_layout & l) const {
    const int64_t block = ggml_blck_size(l.type);
    const size_t  bits  = 8 * l.unit;

    std::vector<uint8_t> blocks(l.unit, 0);
    std::vector<uint8_t> packed(l.unit);
    l.inverted.resize(l.unit);
    pack(l, block, l.rows, blocks.data(), l.inverted.data());

    std::vector<uint32_t> origin(bits, 0);  // of each packed bit
    for (int digit = 0; bits >> digit; digit++) {
        std::fill(blocks.begin(), blocks.end(), 0);
        for (size_t i = 0; i < bits; i++) {
            blocks[i / 8] |= (i >> digit & 1) << i % 8;
        }
        pack(l, block, l.rows, blocks.data(), packed.data());
        for (size_t i = 0; i < bits; i++) {
            origin[i] |= uint32_t((packed[i / 8] ^ l.inverted[i / 8]) >> i % 8 & 1) << digit;
        }
    }
    l.bit_from.assign(bits, 0);
    for (size_t i = 0; i < bits; i++) {
        if (origin[i] >= bits) {
            return false;
        }
        l.bit_from[origin[i]] = i;
    }
    l.byte_from.assign(l.unit, -1);
    for (size_t i = 0; i < l.unit; i++) {
        const uint32_t first = l.bit_from[8 * i];
        bool           whole = first % 8 == 0;
        for (int bit = 1; bit < 8; bit++) {
            whole = whole && l.bit_from[8 * i + bit] == first + bit;
        }
        l.byte_from[i] = whole ? int32_t(first / 8) : -1;
    }

    const int64_t        columns = 3 * block;
    const int64_t        rows    = 2 * l.rows;
    std::vector<uint8_t> before(rows * ggml_row_size(l.type, columns));
    std::vector<uint8_t> after(before.size());
    packed.resize(before.size());
    uint32_t random = 1;
    for (auto & byte : before) {
        random = random * 1664525 + 1013904223;
        byte   = random >> 24;
    }
    pack(l, columns, rows, before.data(), packed.data());
    unpack(l, columns, rows, packed.data(), after.data());
    return before == after;
}

void kernels::find_layouts() {
    quiet log;
    for (int i = 0; i < GGML_TYPE_COUNT; i++) {
        const ggml_type type = ggml_type(i);
        if (!ggml_is_quantized(type) || ggml_blck_size(type) == 0) {
            continue;
        }
        // Fewer rows than a kernel interleaves are none for it: the first that has an answer has that many.
        for (int rows = 2; rows <= MAX_ROWS; rows *= 2) {
            void * extra = extra_for(tensor(type, ggml_blck_size(type), rows, nullptr));
            if (!extra || std::any_of(layouts.begin(), layouts.end(), [&](auto & l) { return l->extra == extra; })) {
                continue;
            }
            auto l   = std::make_unique<rpc_repack_layout>();
            l->type  = type;
            l->extra = extra;
            l->rows  = rows;
            l->unit  = rows * ggml_type_size(type);
            const bool measured = measure(*l);
            // "...: repack tensor x with q4_0_8x8"
            const size_t space = log.last.find_last_of(' ');
            l->name = space == std::string::npos ? ggml_type_name(type) : log.last.substr(space + 1);
            l->name.erase(l->name.find_last_not_of('\n') + 1);
            if (measured) {
                layouts.push_back(std::move(l));
            } else {
                GGML_LOG_WARN("[rpc_repack] %s is not used: it cannot be undone\n", l->name.c_str());
            }
        }
    }
}

static std::string mib(size_t bytes) {
    const size_t hundredths = (bytes * 100 + (1 << 19)) >> 20;
    char         text[32];
    snprintf(text, sizeof(text), "%zu.%02zu", hundredths / 100, hundredths % 100);
    return text;
}

// Best effort: a worker works without it.
void kernels::write_status(size_t n, size_t bytes, size_t of_n, size_t of_bytes) const {
    namespace fs = std::filesystem;
    if (status_path.empty()) {
        return;
    }
    const fs::path path(status_path);
    fs::path       partial = path;
    partial += ".new";
    std::error_code error;
    {
        std::ofstream file(partial, std::ios::trunc);
        file << "{\"invocation\": \"" << invocation << "\", \"repack\": {\"enabled\": " << (enabled ? "true" : "false")
             << ", \"kernels\": " << (layouts.empty() ? "false" : "true") << ", \"weights\": " << n
             << ", \"mib\": " << mib(bytes) << ", \"of_weights\": " << of_n << ", \"of_mib\": " << mib(of_bytes)
             << "}}\n";
        if (!file.flush()) {
            return;
        }
    }
    using p = fs::perms;
    fs::permissions(partial, p::owner_read | p::owner_write | p::group_read | p::others_read, error);
    fs::rename(partial, path, error);
}

void rpc_repack::start(size_t n_devices, ggml_backend_dev_t * devices) {
    kernels &    k    = the();
    const char * off  = std::getenv("GGML_RPC_REPACK");
    const char * path = std::getenv("GGML_RPC_STATUS");
    const char * id   = std::getenv("INVOCATION_ID");
    k.status_path     = path ? path : "";
    k.invocation      = id && strspn(id, "0123456789abcdef") == strlen(id) ? id : "";
    k.enabled         = !(off && strcmp(off, "0") == 0);
    for (size_t i = 0; k.enabled && i < n_devices && !k.carrier; i++) {
        if (ggml_backend_dev_type(devices[i]) != GGML_BACKEND_DEVICE_TYPE_CPU) {
            continue;
        }
        auto get_extra_bufts = (ggml_backend_dev_get_extra_bufts_t) ggml_backend_reg_get_proc_address(
            ggml_backend_dev_backend_reg(devices[i]), "ggml_backend_dev_get_extra_bufts");
        for (auto * buft = get_extra_bufts ? get_extra_bufts(devices[i]) : nullptr; buft && *buft; buft++) {
            // Others want more room than the client has asked for, so they cannot be used in place.
            if (strcmp(ggml_backend_buft_name(*buft), "CPU_REPACK") == 0) {
                k.device  = devices[i];
                k.plain   = ggml_backend_dev_buffer_type(devices[i]);
                k.carrier = ggml_backend_buft_alloc_buffer(*buft, 1);
            }
        }
    }
    if (k.carrier) {
        k.find_layouts();
    }

    std::string names;
    for (auto & l : k.layouts) {
        names += (names.empty() ? "" : ", ") + l->name;
    }
    printf("  repack         : %s\n", !k.enabled       ? "off, by GGML_RPC_REPACK"
                                      : names.empty() ? "none, as there is no kernel for this CPU"
                                                      : names.c_str());
    fflush(stdout);
    k.write_status(0, 0, 0, 0);
    k.enabled = k.enabled && !k.layouts.empty();
}

//
// Weights
//

static uintptr_t address(const ggml_tensor * tensor) {
    return reinterpret_cast<uintptr_t>(tensor->data);
}

// Row after row, and all of it in its buffer: of a row of one block ggml_is_contiguous leaves open how long it is said to
// be, and a client can say anything.
static bool is_whole(const ggml_tensor & t) {
    return ggml_is_contiguous(&t) && ggml_nbytes(&t) == ggml_row_size(t.type, t.ne[0]) * ggml_nrows(&t);
}

// As the files of models name weights, and slices of them.
static bool is_of_a_model(const ggml_tensor & t) {
    const std::string name   = t.name;
    const std::string suffix = ".weight";
    return name.size() > suffix.size() && name.compare(name.size() - suffix.size(), suffix.size(), suffix) == 0;
}

static bool same(const ggml_tensor & a, const ggml_tensor & b) {
    return a.data == b.data && a.type == b.type && std::equal(a.ne, a.ne + GGML_MAX_DIMS, b.ne) && is_whole(a) &&
           is_whole(b);
}

rpc_repack::rpc_repack(size_t n_devices) : graphs(n_devices) {}

rpc_repack::~rpc_repack() {
    tell();
}

// Only memory that this CPU multiplies from.
static bool is_ours(const ggml_tensor * tensor) {
    return the().enabled && tensor->buffer && tensor->buffer->buft == the().plain;
}

// Calls f for each weight of which some of these bytes are part, until it returns false.
template <typename F> void rpc_repack::each_within(const ggml_tensor * tensor, size_t offset, size_t size, F && f) {
    auto found = weights.find(tensor->buffer);
    if (found == weights.end() || size == 0) {
        return;
    }
    auto &          all   = found->second;
    const uintptr_t begin = address(tensor) + offset;
    auto            it    = all.lower_bound(begin);
    if (it != all.begin()) {
        auto before = std::prev(it);
        if (before->first + ggml_nbytes(&before->second.tensor) > begin) {
            it = before;
        }
    }
    while (it != all.end() && it->first < begin + size) {
        auto next = std::next(it);
        if (!f(it->second)) {
            return;
        }
        it = next;
    }
}

rpc_repack::weight * rpc_repack::find(const ggml_tensor * tensor) {
    auto found = weights.find(tensor->buffer);
    if (found == weights.end()) {
        return nullptr;
    }
    auto it = found->second.find(address(tensor));
    return it != found->second.end() && same(it->second.tensor, *tensor) ? &it->second : nullptr;
}

// Nothing else that is known may lie there.
rpc_repack::weight * rpc_repack::add(const ggml_tensor * tensor) {
    const kernels & k = the();
    weight          w = {};
    w.tensor          = *tensor;
    const int dims    = ggml_n_dims(tensor);
    if (ggml_is_quantized(tensor->type) && ggml_nelements(tensor) > 0 && is_whole(*tensor) &&
        (dims == 2 || dims == 3) && address(tensor) % ggml_backend_buft_get_alignment(k.plain) == 0) {
        void * extra = k.extra_for(*tensor);
        for (auto & l : k.layouts) {
            if (l->extra == extra && l->type == tensor->type && tensor->ne[1] % l->rows == 0 &&
                tensor->nb[1] * l->rows <= MAX_GROUP_BYTES) {
                w.layout = l.get();
            }
        }
    }
    return &(weights[tensor->buffer][address(tensor)] = w);
}

// Whole groups.
static int64_t rows_of_slice(int64_t rows_of_group, const ggml_tensor & t) {
    return rows_of_group * std::max<int64_t>(1, SLICE_BYTES / (t.nb[1] * rows_of_group));
}

void rpc_repack::pack(weight & w) {
    quiet                log;
    const ggml_tensor &  t    = w.tensor;
    const int64_t        step = rows_of_slice(w.layout->rows, t);
    std::vector<uint8_t> slice(step * t.nb[1]);
    uint8_t *            data = static_cast<uint8_t *>(t.data);
    for (int64_t left = ggml_nrows(&t), n = 0; left > 0; left -= n, data += n * t.nb[1]) {
        n = std::min(step, left);
        memcpy(slice.data(), data, n * t.nb[1]);
        the().pack(*w.layout, t.ne[0], n, slice.data(), data);
    }
    w.packed = true;
    generation++;
}

bool rpc_repack::unpack(weight & w) {
    quiet                log;
    const ggml_tensor &  t    = w.tensor;
    const int64_t        step = rows_of_slice(w.layout->rows, t);
    std::vector<uint8_t> slice(step * t.nb[1]);
    std::vector<uint8_t> again(step * t.nb[1]);
    uint8_t *            data = static_cast<uint8_t *>(t.data);
    for (int64_t left = ggml_nrows(&t), n = 0; left > 0; left -= n, data += n * t.nb[1]) {
        n = std::min(step, left);
        the().unpack(*w.layout, t.ne[0], n, data, slice.data());
        the().pack(*w.layout, t.ne[0], n, slice.data(), again.data());
        if (memcmp(again.data(), data, n * t.nb[1]) != 0) {
            GGML_LOG_ERROR("[rpc_repack] %s cannot be had as it was stored: set GGML_RPC_REPACK=0\n", t.name);
            return false;
        }
        memcpy(data, slice.data(), n * t.nb[1]);
    }
    w.packed = false;
    w.changes++;
    generation++;
    return true;
}

bool rpc_repack::set_tensor(ggml_tensor * tensor, const void * data, size_t offset, size_t size) {
    if (!is_ours(tensor)) {
        ggml_backend_tensor_set(tensor, data, offset, size);
        return true;
    }
    const uintptr_t begin = address(tensor) + offset;
    bool            ok    = true;
    each_within(tensor, offset, size, [&](weight & w) {
        const uintptr_t at = address(&w.tensor);
        if (w.packed && begin <= at && at + ggml_nbytes(&w.tensor) <= begin + size) {
            w.packed = false;  // all of it is overwritten
            w.changes++;
            generation++;
        } else if (w.packed) {
            ok = unpack(w);
        }
        if (ok && !same(w.tensor, *tensor)) {
            weights[tensor->buffer].erase(at);
        }
        return ok;
    });
    if (!ok) {
        return false;
    }
    ggml_backend_tensor_set(tensor, data, offset, size);

    // Graphs show what can be packed; what nearly always can is packed now, while the client reads or hashes the next
    // one. A matrix of a model is for multiplications, also the embeddings of tokens that come to a worker: they are its
    // output, too. Three dimensions are if they are experts'. A cache of keys and values is no ".weight".
    if (offset == 0 && size == ggml_nbytes(tensor) && size > 0 && ggml_is_quantized(tensor->type) &&
        is_of_a_model(*tensor) && (ggml_n_dims(tensor) == 2 || strstr(tensor->name, "_exps"))) {
        weight * w = find(tensor);
        w          = w ? w : add(tensor);
        if (w->layout && !w->barred && w->changes <= MAX_CHANGES) {
            pack(*w);
        }
    }
    return true;
}

bool rpc_repack::put_back(const ggml_tensor * tensor, size_t offset, size_t size) {
    bool ok = true;
    if (is_ours(tensor)) {
        each_within(tensor, offset, size, [&](weight & w) { return ok = !w.packed || unpack(w); });
    }
    return ok;
}

void rpc_repack::forget(ggml_backend_buffer_t buffer) {
    weights.erase(buffer);
    generation++;
}

//
// Graphs
//

// Whether the kernels can do this multiplication: what the back end says, and what the kernels take for granted.
static bool can_multiply(ggml_tensor * node, void * extra) {
    ggml_tensor *       a = node->src[0];
    const ggml_tensor * b = node->src[1];
    if (!b || b->type != GGML_TYPE_F32 || node->type != GGML_TYPE_F32 || !ggml_is_contiguous(node) ||
        b->nb[0] != sizeof(float) || a->ne[0] != b->ne[0] || a->ne[1] != node->ne[0] || a->ne[3] != 1 ||
        b->ne[3] != 1 || node->ne[3] != 1) {
        return false;
    }
    if (node->op == GGML_OP_MUL_MAT) {
        // Four rows at a time are taken as one piece.
        if (node->ne[1] != b->ne[1] || node->ne[2] != b->ne[2] || (b->ne[1] != 1 && b->nb[1] != b->ne[0] * b->nb[0])) {
            return false;
        }
    } else {
        const ggml_tensor * ids = node->src[2];
        if (!ids || ids->type != GGML_TYPE_I32 || node->ne[1] != ids->ne[0] || node->ne[2] != ids->ne[1] ||
            node->ne[2] != b->ne[2]) {
            return false;
        }
    }
    const kernels &       k      = the();
    ggml_backend_buffer_t buffer = a->buffer;
    a->buffer                    = k.carrier;
    a->extra                     = extra;
    const bool can               = ggml_backend_dev_supports_op(k.device, node);
    a->buffer                    = buffer;
    a->extra                     = nullptr;
    return can;
}

bool rpc_repack::prepare(size_t device, ggml_backend_t backend, ggml_cgraph * graph, bool is_new) {
    if (!the().enabled) {
        return true;
    }
    device_graph & g = graphs[device];
    if (!is_new) {
        if (g.generation == generation) {
            return true;
        }
        for (auto & p : g.patched) {
            p.tensor->buffer = p.buffer;
            p.tensor->extra  = nullptr;
        }
    }
    g.patched.clear();
    n_graphs++;

    struct use {
        ggml_tensor * tensor;
        weight *      w;
    };

    std::vector<use>      uses;
    std::vector<weight *> misused;
    const bool            on_cpu      = ggml_backend_get_device(backend) == the().device;
    bool                  has_weights = false;
    bool                  news        = false;

    const auto misuse = [&](const ggml_tensor * t) {
        each_within(t, 0, ggml_nbytes(t), [&](weight & w) {
            w.seen = n_graphs;
            misused.push_back(&w);
            return true;
        });
    };
    // Returns the weight, if the tensor is one, known or from now on.
    const auto weight_of = [&](const ggml_tensor * t) {
        weight * w = find(t);
        if (w || t->op != GGML_OP_NONE || t->view_src) {
            return w;
        }
        // Another was there before, or is there at the same time.
        bool taken = ggml_nbytes(t) == 0 || !is_whole(*t);
        each_within(t, 0, ggml_nbytes(t), [&](weight & other) {
            taken = taken || other.packed || other.seen == n_graphs;
            return !taken;
        });
        if (taken) {
            return w;
        }
        each_within(t, 0, ggml_nbytes(t), [&](weight & other) {
            weights[t->buffer].erase(address(&other.tensor));
            return true;
        });
        return add(t);
    };

    // All weights are known before it is seen what else is done with them, as a node may write to one before it is used.
    for (bool searching : { true, false }) {
        for (int i = 0; i < graph->n_nodes; i++) {
            ggml_tensor * node = graph->nodes[i];
            if (!node || ggml_op_is_empty(node->op)) {
                continue;  // nothing is read or written
            }
            const bool multiplies = on_cpu && (node->op == GGML_OP_MUL_MAT || node->op == GGML_OP_MUL_MAT_ID);
            if (searching) {
                weight * w = multiplies && node->src[0] && is_ours(node->src[0]) ? weight_of(node->src[0]) : nullptr;
                if (w) {
                    has_weights = true;
                    news        = news || !w->used;
                    w->seen     = n_graphs;
                    w->used     = true;
                }
                continue;
            }
            misuse(node);
            for (int j = 0; j < GGML_MAX_SRC; j++) {
                ggml_tensor * t = node->src[j];
                weight *      w = t && j == 0 && multiplies ? find(t) : nullptr;
                if (w && w->layout && can_multiply(node, w->layout->extra)) {
                    uses.push_back({ t, w });
                } else if (t) {
                    misuse(t);
                }
            }
        }
    }

    for (weight * w : misused) {
        w->barred = true;
        if (w->packed && !unpack(*w)) {
            return false;
        }
    }
    for (const use & u : uses) {
        if (!u.w->packed && !u.w->barred && u.w->changes <= MAX_CHANGES) {
            pack(*u.w);
            news = true;
        }
        if (u.w->packed && u.tensor->buffer != the().carrier) {
            g.patched.push_back({ u.tensor, u.tensor->buffer });
            u.tensor->buffer = the().carrier;
            u.tensor->extra  = u.w->layout->extra;
        }
    }
    g.generation = generation;

    if (news) {
        const tally all = counted();
        the().write_status(all.n, all.bytes, all.of_n, all.of_bytes);
        untold = true;
    } else if (has_weights) {
        tell();  // the weights of one load may come in many graphs; now they have
    }
    return true;
}

//
// What the user is told
//

rpc_repack::tally rpc_repack::counted() const {
    tally all;
    for (const auto & buffer : weights) {
        for (const auto & entry : buffer.second) {
            const weight & w     = entry.second;
            const size_t   bytes = w.used ? ggml_nbytes(&w.tensor) : 0;
            all.of_n += w.used;
            all.of_bytes += bytes;
            all.n += w.used && w.packed;
            all.bytes += w.packed ? bytes : 0;
        }
    }
    return all;
}

void rpc_repack::tell() {
    if (untold) {
        const tally all = counted();
        printf("Repacked %zu of %zu weights (%s of %s MiB)\n", all.n, all.of_n, mib(all.bytes).c_str(),
               mib(all.of_bytes).c_str());
        fflush(stdout);
        untold = false;
    }
}
