// SPDX-License-Identifier: GPL-3.0-or-later
// Says what llama-server would hold with the same options, in bytes: the engine loads the model with no_alloc, which reads
// its header, and allocates and sends none of its weights. Built with a release.
//
//   llama-plan [--seconds N] [--stand-ins N,...] [--one-run] <options of llama-server>
//
// For each line of its input it prints a line of JSON: what is held, or an "error". The line has further options, separated by
// tabs, such as another --tensor-split; it may be empty. The program ends with its input, if an answer takes longer than
// --seconds, and with the process that started it.
// --stand-ins starts RPC servers in place of the workers, one for each number, with so many devices. No worker is asked.
// --one-run plans what llama-completion would hold, which has one sequence, and may want the output of each token.
// If root starts it, it goes on as nobody, who may read files, and in a network of its own.
#include "common.h"
#include "arg.h"
#include "log.h"
#include "mtmd.h"
#include "speculative.h"

#include "ggml-backend.h"
#include "ggml-rpc.h"

#include "llama-adapter.h"
#include "llama-arch.h"
#include "llama-context.h"
#include "llama-ext.h"
#include "llama-graph.h"
#include "llama-model.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <clocale>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

static const size_t LARGE = 1 << 20;

// A plan writes to no buffer. So those that the engine allocates all the same (compute buffers, recurrent states, adapters,
// projectors) take addresses, but no memory, here and in the stand-ins. See --wrap in llama-plan.cmake.
extern "C" {
void __wrap_ggml_backend_buffer_clear(ggml_backend_buffer_t, uint8_t) {}
void __wrap_ggml_backend_tensor_set(ggml_tensor *, const void *, size_t, size_t) {}

void * __real_ggml_aligned_malloc(size_t);
void   __real_ggml_aligned_free(void *, size_t);

// More than the host has can be planned: the kernel does not count these addresses.
void * __wrap_ggml_aligned_malloc(size_t size) {
    if (size < LARGE) {
        return __real_ggml_aligned_malloc(size);
    }
    void * found = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return found == MAP_FAILED ? nullptr : found;
}

void __wrap_ggml_aligned_free(void * memory, size_t size) {
    if (size < LARGE) {
        __real_ggml_aligned_free(memory, size);
    } else if (memory) {
        munmap(memory, size);
    }
}
}

static FILE *      out;      // standard output; the engine's own goes to standard error
static std::string refusal;  // the first error that the engine has logged
static bool        one_run;

static std::string quoted(const std::string & text) {
    std::string all = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') {
            all += '\\';
        }
        all += (unsigned char) c < ' ' ? ' ' : c;
    }
    return all + '"';
}

static void print_error(const std::string & reason) {
    fprintf(out, "{\"error\": %s}\n", quoted(reason).c_str());
    fflush(out);
}

// The engine's reason without the names of its functions, on one line.
static std::string plain(std::string text) {
    for (size_t colon; (colon = text.find(": ")) != std::string::npos && text.find(' ') > colon;) {
        text.erase(0, colon + 2);
    }
    while (!text.empty() && (isspace((unsigned char) text.back()) || text.back() == '.')) {
        text.pop_back();
    }
    return text;
}

static void keep_error(ggml_log_level level, const char * text, void *) {
    if (level == GGML_LOG_LEVEL_ERROR && refusal.empty()) {
        refusal = plain(text);
    }
}

[[noreturn]] static void on_abort(const char * message) {
    print_error(refusal.empty() ? plain(message) : refusal);
    _exit(1);
}

[[noreturn]] static void on_crash(int number) {
    // The engine may have crashed anywhere: nothing that allocates.
    dprintf(fileno(out), "{\"error\": \"the engine crashed (signal %d)\"}\n", number);
    _exit(1);
}

[[noreturn]] static void on_alarm(int) {
    dprintf(fileno(out), "{\"error\": \"it took longer than the time limit\"}\n");
    _exit(1);
}

//
// Stand-ins
//

// A network that nobody else reaches: no port of it can be taken, and no other program can ask a stand-in. Where that is not
// allowed, the stand-ins listen on the host's loopback.
static void leave_network() {
    if (unshare(geteuid() == 0 ? CLONE_NEWNET : CLONE_NEWUSER | CLONE_NEWNET) != 0) {
        return;
    }
    const int fd = socket(AF_INET, SOCK_DGRAM, 0);
    ifreq     loopback{};
    strcpy(loopback.ifr_name, "lo");
    loopback.ifr_flags = IFF_UP;
    if (fd < 0 || ioctl(fd, SIOCSIFFLAGS, &loopback) != 0) {
        throw std::runtime_error(std::string("no loopback in a network of its own: ") + strerror(errno));
    }
    close(fd);
}

// As nobody, who may read each file and nothing else. The root of a container without such an account stays what it is.
static void leave_root() {
    if (geteuid() != 0) {
        return;
    }
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    prctl(PR_SET_KEEPCAPS, 1);
    if (setgroups(0, nullptr) != 0 || setresgid(65534, 65534, 65534) != 0 || setresuid(65534, 65534, 65534) != 0) {
        return;
    }
    __user_cap_header_struct header  = {_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct   data[2] = {};
    data[0].effective = data[0].permitted = 1u << CAP_DAC_READ_SEARCH;
    syscall(SYS_capset, &header, data);
}

static sockaddr_in loopback_address(int port) {
    sockaddr_in address{};
    address.sin_family      = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port        = htons(uint16_t(port));
    return address;
}

static int free_port() {
    const int   fd      = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = loopback_address(0);
    socklen_t   size    = sizeof(address);
    if (fd < 0 || bind(fd, (sockaddr *) &address, size) != 0 || getsockname(fd, (sockaddr *) &address, &size) != 0) {
        throw std::runtime_error(std::string("no port on loopback: ") + strerror(errno));
    }
    close(fd);
    return ntohs(address.sin_port);
}

// Connecting to the server would keep it busy, so the kernel is asked.
static bool listens(int port) {
    FILE *       sockets = fopen("/proc/self/net/tcp", "r");
    char         line[512];
    unsigned int local, state;
    bool         yes = false;
    while (sockets && fgets(line, sizeof(line), sockets)) {
        yes |= sscanf(line, " %*d: %*x:%x %*x:%*x %x", &local, &state) == 2 && local == unsigned(port) && state == 0x0a;
    }
    if (sockets) {
        fclose(sockets);
    }
    return yes;
}

[[noreturn]] static void serve(int port, int devices, pid_t parent) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int none = open("/dev/null", O_RDWR);
    dup2(none, 0), dup2(none, 1), dup2(none, 2), dup2(none, fileno(out));
    ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    auto * start = (decltype(ggml_backend_rpc_start_server) *) ggml_backend_reg_get_proc_address(
        ggml_backend_reg_by_name("RPC"), "ggml_backend_rpc_start_server");
    std::vector<ggml_backend_dev_t> all(size_t(devices), cpu);
    if (cpu && start && getppid() == parent) {
        start(("127.0.0.1:" + std::to_string(port)).c_str(), nullptr, 1, all.size(), all.data());
    }
    _exit(1);  // the server has no other end
}

struct stand_ins {
    std::vector<pid_t> all;
    std::string        endpoints;

    void start(const std::string & devices) {
        for (const std::string & number : string_split<std::string>(devices, ',')) {
            const int   port   = free_port();
            const pid_t parent = getpid(), child = fork();
            if (child == 0) {
                serve(port, std::max(1, atoi(number.c_str())), parent);
            }
            if (child < 0) {
                throw std::runtime_error(std::string("no process for a stand-in: ") + strerror(errno));
            }
            all.push_back(child);
            for (int waited = 0; !listens(port); waited++) {
                if (waitpid(child, nullptr, WNOHANG) == child || waited > 5000) {
                    throw std::runtime_error("a stand-in for a worker does not listen on loopback");
                }
                usleep(2000);
            }
            endpoints += (endpoints.empty() ? "" : ",") + std::string("127.0.0.1:") + std::to_string(port);
        }
    }

    ~stand_ins() {
        for (const pid_t child : all) {
            kill(child, SIGKILL);
            waitpid(child, nullptr, 0);
        }
    }
};

//
// What is held
//

struct bytes {
    size_t weights = 0, context = 0, compute = 0;
};

// By part, device and buffer type. The device "" is the master: what no device of the model holds.
using held = std::map<std::tuple<std::string, std::string, std::string>, bytes>;

// Device and bytes of a tensor that a split mode spreads over several devices.
using shares = std::vector<size_t>;

static shares shares_of(const ggml_tensor * tensor, const llama_model & model, size_t padded) {
    auto *       ud    = const_cast<llama_meta_device_get_split_state_userdata *>(&model.get_split_state_ud);
    const auto   state = llama_meta_device_get_split_state(tensor, ud);
    const size_t n     = ud->n_devices;
    shares       each(n, padded);
    if (state.axis >= 0 && state.axis < GGML_MAX_DIMS) {
        for (size_t j = 0; j < n; j++) {
            int64_t ne = 0;
            for (size_t s = 0; s < state.n_segments; s++) {
                ne += state.ne[s * n + j] * int64_t(state.nr[s]);
            }
            each[j] = size_t(double(padded) * double(ne) / double(tensor->ne[state.axis]));
        }
    }
    return each;
}

// The tensors that the reserved graph reads from buffers: weights, adapters, and the contexts' caches and states.
static std::set<const ggml_tensor *> stored_tensors(const llama_context & ctx) {
    std::set<const ggml_tensor *> found;
    ggml_cgraph * graph = ctx.get_gf_res_reserve()->get_gf();
    for (int i = 0; graph && i < ggml_graph_n_nodes(graph); i++) {
        const ggml_tensor * node = ggml_graph_node(graph, i);
        for (int s = -1; s < GGML_MAX_SRC; s++) {
            const ggml_tensor * tensor = s < 0 ? node : node->src[s];
            while (tensor && tensor->view_src) {
                tensor = tensor->view_src;
            }
            if (tensor && tensor->buffer && ggml_backend_buffer_get_usage(tensor->buffer) != GGML_BACKEND_BUFFER_USAGE_COMPUTE) {
                found.insert(tensor);
            }
        }
    }
    return found;
}

static size_t padded_size(const ggml_tensor * tensor) {
    ggml_backend_buffer_type_t type = ggml_backend_buffer_get_type(tensor->buffer);
    return GGML_PAD(ggml_backend_buft_get_alloc_size(type, tensor), ggml_backend_buft_get_alignment(type));
}

// The layer of a cache or state, from its name, or -1.
static int layer_of_cache(const ggml_tensor * tensor) {
    const char * at = strrchr(tensor->name, 'l');
    return at && at > tensor->name && at[-1] == '_' && isdigit((unsigned char) at[1]) ? atoi(at + 1) : -1;
}

static bool is_spread(ggml_backend_buffer_type_t type) {
    ggml_backend_dev_t dev = ggml_backend_buft_get_device(type);
    return dev && ggml_backend_dev_type(dev) == GGML_BACKEND_DEVICE_TYPE_META;
}

static std::string name_of(ggml_backend_dev_t dev) {
    return !dev || ggml_backend_dev_type(dev) == GGML_BACKEND_DEVICE_TYPE_CPU ? "" : ggml_backend_dev_name(dev);
}

static std::string device_of(ggml_backend_buffer_type_t type, const llama_model & model) {
    ggml_backend_dev_t dev = ggml_backend_buft_get_device(type);
    for (const llama_device & known : model.devices) {
        if (known.dev == dev && !ggml_backend_buft_is_host(type)) {
            return ggml_backend_dev_name(dev);
        }
    }
    return "";
}

// The devices that the model is spread over in split mode tensor, in the order in which llama_prepare_model_devices takes them.
static std::vector<ggml_backend_dev_t> spread_devices(const common_params & params) {
    std::vector<ggml_backend_dev_t> all;
    if (!params.devices.empty()) {
        std::copy_if(params.devices.begin(), params.devices.end(), std::back_inserter(all), [](auto dev) { return dev != nullptr; });
        return all;
    }
    for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
        ggml_backend_dev_t dev = ggml_backend_dev_get(i);
        if (ggml_backend_dev_buffer_type(dev) != ggml_backend_cpu_buffer_type()) {
            all.push_back(dev);
        }
    }
    return all;
}

// The compute buffers of a context: reserved as in llama_context::sched_reserve. With no_alloc, that function measures the
// first graph alone, and after a reset that forgets on which devices the graph's builder wants its tensors.
static std::map<ggml_backend_buffer_type_t, size_t> compute_buffers(llama_context & ctx) {
    const llama_cparams & cparams = ctx.get_cparams();
    const uint32_t        n_seqs  = cparams.n_seq_max;
    const uint32_t        tokens  = std::min(cparams.n_ctx, cparams.n_ubatch);
    const uint32_t        outputs = std::min(tokens, cparams.n_outputs_max);
    const llm_arch        arch    = ctx.get_model().arch;
    const bool            apart   = arch == LLM_ARCH_KIMI_LINEAR || arch == LLM_ARCH_MINIMAX_01;
    ggml_backend_sched_t  sched   = ctx.get_sched();

    const uint32_t graphs[][3] = {{tokens, n_seqs, outputs}, {n_seqs, n_seqs, n_seqs}, {tokens, apart ? 1 : n_seqs, outputs}};
    for (const auto & [n_tokens, seqs, n_outputs] : graphs) {
        llama_memory_context_ptr memory;
        if (llama_get_memory(&ctx)) {
            memory = llama_get_memory(&ctx)->init_full();
        }
        if (!ctx.graph_reserve(n_tokens, seqs, n_outputs, memory.get())) {
            throw std::runtime_error("the compute buffers cannot be allocated");
        }
    }
    std::map<ggml_backend_buffer_type_t, size_t> all;
    for (int i = 0; i < ggml_backend_sched_get_n_backends(sched); i++) {
        ggml_backend_t backend = ggml_backend_sched_get_backend(sched, i);
        all[ggml_backend_sched_get_buffer_type(sched, backend)] += ggml_backend_sched_get_buffer_size(sched, backend);
    }
    return all;
}

// The buffer for what the graphs give (llama_context::output_reserve), once so many tokens of a batch have wanted it.
static size_t output_buffer(const llama_context & ctx, size_t outputs) {
    const llama_cparams & cparams = ctx.get_cparams();
    const llama_hparams & hparams = ctx.get_model().hparams;
    const size_t          width   = hparams.n_embd_out();
    size_t floats = outputs * ctx.get_model().vocab.n_tokens();
    floats += cparams.embeddings ? outputs * width : 0;
    floats += cparams.embeddings_nextn ? width * (cparams.embeddings_nextn_masked ? outputs : cparams.n_batch) : 0;
    for (const bool enabled : cparams.embeddings_layer_inp) {
        floats += enabled ? size_t(hparams.n_embd) * cparams.n_batch : 0;
    }
    return floats * sizeof(float);
}

// What a context holds, and its model's weights unless it shares them.
static void add_context(held & all, const std::string & part, llama_context & ctx, const common_params & params, bool weights) {
    const llama_model & model   = ctx.get_model();
    const auto          compute = compute_buffers(ctx);
    const auto compute_of = [&compute](ggml_backend_buffer_type_t type) {
        return compute.count(type) ? compute.at(type) : 0;
    };
    // llama-completion wants the output of one token at a time.
    const size_t outputs = std::max<size_t>(one_run ? 1 : ctx.get_cparams().n_outputs_max, ctx.n_seq_max());
    for (const auto & [type, size] : llama_get_memory_breakdown(&ctx)) {
        const std::string name = ggml_backend_buft_name(type);
        if (!is_spread(type)) {
            bytes & sum = all[{part, device_of(type, model), name}];
            sum.weights += weights ? size.model : 0;
            sum.context += size.context;
            sum.compute += compute_of(type);
            continue;
        }
        const auto devices = spread_devices(params);
        std::vector<bytes> each(devices.size());
        size_t contexts = 0;
        for (const ggml_tensor * tensor : stored_tensors(ctx)) {
            if (ggml_backend_buffer_get_type(tensor->buffer) == type && layer_of_cache(tensor) >= 0) {
                const size_t padded = padded_size(tensor);
                const shares part_of = shares_of(tensor, model, padded);
                for (size_t j = 0; j < each.size(); j++) {
                    each[j].context += part_of[j];
                }
                contexts += padded;
            }
        }
        for (const auto & [tensor_name, tensor] : model.tensors_by_name) {
            if (weights && tensor->buffer && ggml_backend_buffer_get_type(tensor->buffer) == type) {
                const shares part_of = shares_of(tensor, model, padded_size(tensor));
                for (size_t j = 0; j < each.size(); j++) {
                    each[j].weights += part_of[j];
                }
            }
        }
        for (size_t j = 0; j < each.size(); j++) {
            bytes & sum = all[{part, ggml_backend_dev_name(devices[j]), ggml_backend_buft_name(ggml_backend_dev_buffer_type(devices[j]))}];
            sum.weights += each[j].weights;
            // What the graph does not show is taken as held by each.
            sum.context += each[j].context + (size.context > contexts ? size.context - contexts : 0);
            sum.compute += compute_of(type);
        }
    }
    all[{"outputs", "", "CPU"}].compute += output_buffer(ctx, outputs);
}

static void add_adapters(held & all, const common_params & params, const llama_model & model) {
    for (const auto & adapter : params.lora_adapters) {
        for (const auto & buffer : adapter.ptr->bufs) {
            ggml_backend_buffer_type_t type = ggml_backend_buffer_get_type(buffer.get());
            const size_t               size = ggml_backend_buffer_get_size(buffer.get());
            if (is_spread(type)) {
                for (ggml_backend_dev_t dev : spread_devices(params)) {
                    all[{"adapters", ggml_backend_dev_name(dev), ggml_backend_buft_name(ggml_backend_dev_buffer_type(dev))}].weights += size;
                }
            } else {
                all[{"adapters", device_of(type, model), ggml_backend_buft_name(type)}].weights += size;
            }
        }
    }
}

static void add_projector(held & all, const common_params & params) {
    mtmd_context_params mparams = mtmd_context_params_default();
    mparams.use_gpu          = params.mmproj_use_gpu;
    mparams.device           = params.mmproj_device;
    mparams.print_timings    = false;
    mparams.n_threads        = 1;
    mparams.flash_attn_type  = params.flash_attn_type;
    mparams.image_min_tokens = params.image_min_tokens;
    mparams.image_max_tokens = params.image_max_tokens;
    mparams.batch_max_tokens = params.mtmd_batch_max_tokens;
    const auto usage = mtmd_get_memory_usage(params.mmproj.path.c_str(), mparams).backend_mem_usage;
    if (usage.empty()) {
        throw std::runtime_error("the projector cannot be loaded: " + params.mmproj.path);
    }
    for (const auto & [dev, size] : usage) {
        all[{"projector", name_of(dev), dev ? ggml_backend_buft_name(ggml_backend_dev_buffer_type(dev)) : "CPU"}].weights += size;
    }
}

//
// One plan
//

// As llama-server changes the options before it loads (tools/server/server.cpp, server-context.cpp: load_model).
static void as_the_server(common_params & params) {
    if (one_run) {
        params.n_parallel = 1;
    }
    if (params.embedding && params.n_batch > params.n_ubatch) {
        params.n_batch = params.n_ubatch;
    }
    if (params.n_parallel < 0) {
        params.n_parallel = 4;
        params.kv_unified = true;
    }
    if (params.kv_unified_per_slot > 0 && params.n_ctx == 0 && uint32_t(params.fit_params_min_ctx) != UINT32_MAX) {
        params.n_ctx = params.n_parallel * params.kv_unified_per_slot;
    }
    if (one_run) {
        params.n_outputs_max = 0;
    } else if (params.embedding || (params.pooling_type != LLAMA_POOLING_TYPE_UNSPECIFIED && params.pooling_type != LLAMA_POOLING_TYPE_NONE)) {
        params.n_outputs_max         = params.n_batch;
        params.n_outputs_max_per_seq = 1;
    } else {
        const auto limits = common_speculative_get_output_limits(params.n_batch, params.n_parallel, common_speculative_n_max(&params.speculative));
        params.n_outputs_max         = std::max<int32_t>(1, limits.total);
        params.n_outputs_max_per_seq = std::max<int32_t>(1, limits.per_seq);
    }
    // Only the sizes are asked for.
    params.no_alloc   = true;
    params.fit_params = false;
    params.warmup     = false;
    params.load_mode  = LLAMA_LOAD_MODE_NONE;
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1;
    params.speculative.draft.cpuparams.n_threads = params.speculative.draft.cpuparams_batch.n_threads = 1;
}

static void print_layers(llama_context & ctx) {
    const llama_model &   model = ctx.get_model();
    const int             n     = int(model.hparams.n_layer_all);
    std::vector<bytes>    layers(size_t(n) + 1);   // the last one is the output
    std::vector<size_t>   elsewhere(size_t(n) + 1);  // not on the layer's device
    size_t                input = 0;
    for (const auto & [name, tensor] : model.tensors_by_name) {
        if (!tensor->buffer) {
            continue;
        }
        ggml_backend_buffer_type_t type = ggml_backend_buffer_get_type(tensor->buffer);
        const size_t               size = padded_size(tensor);
        // An output that is the input's matrix has a copy of it, with its name.
        if (name.compare(0, 10, "token_embd") == 0 && device_of(type, model).empty()) {
            input += size;
            continue;
        }
        const int          il   = name.compare(0, 4, "blk.") == 0 ? std::min(atoi(name.c_str() + 4), n) : n;
        const std::string  home = name_of(il < n ? model.dev_layer(il) : model.dev_output());
        (device_of(type, model) == home ? layers[size_t(il)].weights : elsewhere[size_t(il)]) += size;
    }
    for (const ggml_tensor * tensor : stored_tensors(ctx)) {
        const int il = layer_of_cache(tensor);
        // A cache that stays with the master does not move with its layer.
        if (il >= 0 && il < n && device_of(ggml_backend_buffer_get_type(tensor->buffer), model) == name_of(model.dev_layer(il))) {
            layers[size_t(il)].context += padded_size(tensor);
        }
    }
    fprintf(out, "\"input\": %zu, \"layers\": [", input);
    for (int il = 0; il <= n; il++) {
        fprintf(out, "%s{\"device\": %s, \"weights\": %zu, \"elsewhere\": %zu, \"context\": %zu}", il ? ", " : "",
                quoted(name_of(il < n ? model.dev_layer(il) : model.dev_output())).c_str(), layers[size_t(il)].weights,
                elsewhere[size_t(il)], layers[size_t(il)].context);
    }
    fprintf(out, "]");
}

// Of the tokenizer, a plan needs only the number of tokens. Reading it takes most of the time, so it is read once.
struct vocabulary {
    std::string tokens;

    void replace(common_params & params) const {
        if (tokens.empty()) {
            return;
        }
        auto & all = params.kv_overrides;
        if (!all.empty()) {
            all.pop_back();  // what marks the end
        }
        string_parse_kv_override("tokenizer.ggml.model=str:no_vocab", all);
        string_parse_kv_override(tokens.c_str(), all);
        all.emplace_back();
        all.back().key[0] = 0;
    }
};

static void plan(common_params params, vocabulary & known) {
    as_the_server(params);
    common_init_result_ptr             loaded;
    common_speculative_init_result_ptr drafting;
    common_speculative_ptr             speculative;

    const auto & types = params.speculative.types;
    const bool   mtp   = std::find(types.begin(), types.end(), COMMON_SPECULATIVE_TYPE_DRAFT_MTP) != types.end();
    const bool   alone = !params.speculative.has_dft() && !mtp && params.mmproj.path.empty();
    if (alone) {
        known.replace(params);
    }
    loaded = common_init_from_params(params);
    if (!loaded->model() || !loaded->context()) {
        throw std::runtime_error("the model cannot be loaded");
    }
    llama_context & ctx = *loaded->context();
    common_params   params_dft;
    if (params.speculative.has_dft() || mtp) {
        params_dft = common_base_params_to_speculative(params);
        drafting   = common_speculative_init_from_params(params_dft, loaded->model(), &ctx);
        if (!drafting->context()) {
            throw std::runtime_error("the draft cannot be loaded");
        }
        params.speculative.draft.ctx_tgt = &ctx;
        params.speculative.draft.ctx_dft = drafting->context();
        speculative.reset(common_speculative_init(params.speculative, uint32_t(params.n_parallel)));
    }
    // Adapters and drafts change the graphs.
    for (llama_context * changed : {&ctx, drafting ? drafting->context() : nullptr}) {
        if (changed) {
            changed->sched_reserve();
        }
    }

    held all;
    add_context(all, "model", ctx, params, true);
    add_adapters(all, params, *loaded->model());
    if (drafting) {
        add_context(all, "draft", *drafting->context(), params_dft, drafting->model() != nullptr);
    }
    if (!params.mmproj.path.empty() && !params.no_mmproj) {
        add_projector(all, params);
    }

    fprintf(out, "{\"n_ctx\": %u, \"n_ctx_slot\": %u, \"slots\": %d, \"file\": %zu, ", ctx.n_ctx(), ctx.n_ctx_seq(), params.n_parallel,
            loaded->model()->size());
    print_layers(ctx);
    fprintf(out, ", \"held\": [");
    const char * between = "";
    for (const auto & [key, sum] : all) {
        const auto & [part, device, type] = key;
        fprintf(out, "%s{\"part\": %s, \"device\": %s, \"buffer_type\": %s, \"weights\": %zu, \"context\": %zu, \"compute\": %zu}", between,
                quoted(part).c_str(), quoted(device).c_str(), quoted(type).c_str(), sum.weights, sum.context, sum.compute);
        between = ", ";
    }
    fprintf(out, "]}\n");
    fflush(out);

    const llama_model & model = *loaded->model();
    known.tokens = std::string(llm_arch_name(model.arch)) + ".vocab_size=int:" + std::to_string(model.vocab.n_tokens());
}

int main(int argc, char ** argv) {
    std::setlocale(LC_NUMERIC, "C");
    out = fdopen(fcntl(1, F_DUPFD_CLOEXEC, 3), "w");
    dup2(2, 1);
    const rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    setenv("GGML_NO_BACKTRACE", "1", 1);
    signal(SIGPIPE, SIG_IGN);
    for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) {
        signal(number, on_crash);
    }
    ggml_set_abort_callback(on_abort);

    unsigned                 limit = 0;
    std::string              devices, line;
    vocabulary               known;
    std::vector<std::string> options = {argv[0]};
    for (int i = 1; i < argc; i++) {
        const std::string option = argv[i];
        if (option == "--stand-ins" && i + 1 < argc) {
            devices = argv[++i];
        } else if (option == "--seconds" && i + 1 < argc) {
            signal(SIGALRM, on_alarm);
            limit = unsigned(std::max(1, atoi(argv[++i])));
        } else if (option == "--one-run") {
            one_run = true;
        } else {
            options.push_back(option);
        }
    }

    stand_ins workers;
    alarm(limit);
    try {
        if (!devices.empty()) {
            leave_network();
        }
        leave_root();
        prctl(PR_SET_PDEATHSIG, SIGKILL);  // not before, as a change of credentials clears it
        ggml_backend_load_all();
        if (!devices.empty()) {
            workers.start(devices);
            options.insert(options.begin() + 1, {"--rpc", workers.endpoints});
        }
        common_init();
        llama_backend_init();
    } catch (const std::exception & e) {
        print_error(e.what());
        return 1;
    }
    alarm(0);
    while (std::getline(std::cin, line)) {
        alarm(limit);
        refusal.clear();
        std::vector<std::string> words = options;
        for (const std::string & word : string_split<std::string>(line, '\t')) {
            if (!word.empty()) {
                words.push_back(word);
            }
        }
        std::vector<char *> all;
        for (std::string & word : words) {
            all.push_back(word.data());
        }
        common_params params;
        if (!common_params_parse(int(all.size()), all.data(), params, LLAMA_EXAMPLE_SERVER)) {
            return 1;  // it has said why
        }
        common_log_set_verbosity_thold(LOG_LEVEL_OUTPUT);
        llama_log_set(keep_error, nullptr);
        mtmd_log_set(keep_error, nullptr);
        try {
            if (params.model.path.empty()) {
                throw std::runtime_error("--model is missing");
            }
            plan(std::move(params), known);
        } catch (const std::exception & e) {
            print_error(refusal.empty() ? plain(e.what()) : refusal);
        }
        alarm(0);
    }
    return 0;
}
