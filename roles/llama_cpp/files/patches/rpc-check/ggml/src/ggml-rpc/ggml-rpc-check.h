// SPDX-License-Identifier: GPL-3.0-or-later
//
// What a worker refuses, as no client of llama.cpp sends it. That ends the client's connection; the worker serves the next one.
//
// Upstream's server makes tensors and graphs of what the wire says, without ggml's own functions, whose assertions (in ggml.c) a client
// has passed already. The CPU's kernels rely on these, and what they check themselves are assertions, too: some are not compiled into a
// release build, the others end the process. Here is what those functions assert, of these things:
//
// - Of each tensor: its operation and its shape are possible, and all of it lies in its buffer, stepped through as kernels do, by its
//   strides, and along a row by the size of its type at least.
// - Of each node of a graph: it is there, and it has no function of the client's to call.
// - Of each node that is computed: it and its sources have buffers. Without one its data are at address 0, and so an index is an address.
// - Of ACC, SET, GET_ROWS, SET_ROWS, SSM_SCAN and GATED_DELTA_NET: types, shapes and parameters fit, so that their kernels stay within
//   their tensors.
//
// What is not here: numbers in a buffer. Which rows, states or experts are taken is known when they are, and it is the kernel that asserts
// it (in MUL_MAT_ID and SSM_SCAN with this patch only): a wrong one ends the process. And shapes and parameters of all other operations,
// whose kernels may trust a client as well.
//
// Included by ggml-rpc.cpp: it is part of that file.

#pragma once

#include <initializer_list>

namespace rpc_check {

// No process has room for more. What kernels make of such a size, times a number of threads or of bytes of a type, is no overflow.
static const uint64_t MAX_BYTES = 1ull << 48;
static const uint64_t TOO_MUCH  = MAX_BYTES + 1;
// Kernels count rows in 32 bits, and beyond the last one up to a multiple of the threads.
static const int64_t MAX_ROWS = INT32_MAX - GGML_MAX_N_THREADS;

static uint64_t product(std::initializer_list<uint64_t> factors) {
    uint64_t found = 1;
    for (uint64_t factor : factors) {
        if (factor > 1 && found > MAX_BYTES/factor) {
            return TOO_MUCH;
        }
        found *= factor;
    }
    return found;
}

static bool has_shape(const ggml_tensor * t, int64_t ne0, int64_t ne1, int64_t ne2, int64_t ne3) {
    return t->ne[0] == ne0 && t->ne[1] == ne1 && t->ne[2] == ne2 && t->ne[3] == ne3;
}

// All of them are there, and of this type.
static bool are(ggml_type type, std::initializer_list<const ggml_tensor *> tensors) {
    return std::all_of(tensors.begin(), tensors.end(), [type](const ggml_tensor * t) { return t && t->type == type; });
}

// ggml_acc, ggml_set: b is added to a part of a, or takes its place.
static bool fits_part(const ggml_tensor * node) {
    const ggml_tensor * a = node->src[0];
    const ggml_tensor * b = node->src[1];
    if (!are(GGML_TYPE_F32, { node, a, b }) && (node->op == GGML_OP_ACC || !are(GGML_TYPE_I32, { node, a, b }))) {
        return false;
    }
    const int64_t size   = ggml_type_size(b->type);
    const int64_t offset = ggml_get_op_params_i32(node, 3);
    if (!ggml_are_same_shape(node, a) || !ggml_is_contiguous(node) || !ggml_is_contiguous(a) || b->nb[0] != (size_t) size ||
            ggml_nrows(b) > MAX_ROWS || offset < 0) {
        return false;
    }
    uint64_t end = offset + std::max<int64_t>(1, b->ne[0])*size;
    for (int i = 1; i < GGML_MAX_DIMS; i++) {
        const int64_t stride = ggml_get_op_params_i32(node, i - 1);
        if (b->ne[i] > 1) { // else the stride is of no use, and may have been too large for a parameter
            end += stride < 0 ? TOO_MUCH : product({ (uint64_t) b->ne[i] - 1, (uint64_t) stride });
        }
    }
    return end <= ggml_nbytes(node);
}

static bool fits_get_rows(const ggml_tensor * node) {
    const ggml_tensor * a = node->src[0];
    const ggml_tensor * b = node->src[1];
    return a && are(GGML_TYPE_I32, { b }) && node->type == (a->type == GGML_TYPE_I32 ? GGML_TYPE_I32 : GGML_TYPE_F32) &&
        (a->type == GGML_TYPE_F32 || a->type == GGML_TYPE_I32 || ggml_get_type_traits(a->type)->to_float) &&
        a->ne[2] == b->ne[1] && a->ne[3] == b->ne[2] && b->ne[3] == 1 && ggml_nelements(b) <= MAX_ROWS &&
        has_shape(node, a->ne[0], b->ne[0], b->ne[1], b->ne[2]);
}

static bool fits_set_rows(const ggml_tensor * node, ggml_backend_t backend) {
    const ggml_tensor * b = node->src[0];
    const ggml_tensor * c = node->src[1];
    if ((!are(GGML_TYPE_F32, { b }) && !are(GGML_TYPE_F16, { b })) || (!are(GGML_TYPE_I64, { c }) && !are(GGML_TYPE_I32, { c })) ||
            // The back end knows what it can convert to, of the types that can be asked for.
            node->type == GGML_TYPE_I8 || node->type == GGML_TYPE_I16 || node->type == GGML_TYPE_I64 || node->type == GGML_TYPE_F64 ||
            !ggml_backend_supports_op(backend, node)) {
        return false;
    }
    // In split mode "tensor" no rows are not sliced as the result is.
    return ggml_nrows(b) == 0 ||
        (node->ne[0] == b->ne[0] && node->ne[2] == b->ne[2] && node->ne[3] == b->ne[3] && c->ne[0] == b->ne[1] && c->ne[3] == 1 &&
         c->ne[1] > 0 && b->ne[2] % c->ne[1] == 0 && c->ne[2] > 0 && b->ne[3] % c->ne[2] == 0);
}

static bool fits_ssm_scan(const ggml_tensor * node) {
    const ggml_tensor * s   = node->src[0];
    const ggml_tensor * x   = node->src[1];
    const ggml_tensor * dt  = node->src[2];
    const ggml_tensor * A   = node->src[3];
    const ggml_tensor * B   = node->src[4];
    const ggml_tensor * C   = node->src[5];
    const ggml_tensor * ids = node->src[6];
    if (!are(GGML_TYPE_F32, { node, s, x, dt, A, B, C }) || !are(GGML_TYPE_I32, { ids })) {
        return false;
    }
    const int64_t n_head = x->ne[1], n_tokens = x->ne[2], n_seqs = x->ne[3], n_group = B->ne[1];
    const int64_t K = ggml_get_op_params_i32(node, 0);
    for (const ggml_tensor * t : { x, B, C }) {
        if (t->nb[0] != sizeof(float) || t->nb[1] != t->ne[0]*sizeof(float)) {
            return false;
        }
    }
    return K >= 1 && ggml_is_contiguous(node) && ggml_is_contiguous(s) && ggml_is_contiguous(dt) && ggml_is_contiguous(A) &&
        // The result has the strides of the states, also where there is only one of these.
        s->nb[2] == s->nb[1]*s->ne[1] && s->nb[3] == s->nb[2]*s->ne[2] && s->ne[1] == x->ne[0] && s->ne[2] == n_head &&
        has_shape(dt, n_head, n_tokens, n_seqs, 1) && (A->ne[0] == 1 || (A->ne[0] == s->ne[0] && K == 1)) &&
        has_shape(A, A->ne[0], n_head, 1, 1) && has_shape(B, s->ne[0], n_group, n_tokens, n_seqs) && ggml_are_same_shape(B, C) &&
        has_shape(ids, n_seqs, 1, 1, 1) && ids->nb[0] == sizeof(int32_t) && n_group > 0 && n_head % n_group == 0 &&
        (uint64_t) ggml_nelements(node) == ggml_nelements(x) +
            product({ (uint64_t) K, (uint64_t) s->ne[0], (uint64_t) s->ne[1], (uint64_t) n_head, (uint64_t) n_seqs });
}

static bool fits_gated_delta_net(const ggml_tensor * node) {
    const ggml_tensor * q     = node->src[0];
    const ggml_tensor * k     = node->src[1];
    const ggml_tensor * v     = node->src[2];
    const ggml_tensor * g     = node->src[3];
    const ggml_tensor * beta  = node->src[4];
    const ggml_tensor * state = node->src[5];
    if (!are(GGML_TYPE_F32, { node, q, k, v, g, beta, state })) {
        return false;
    }
    const int64_t S = v->ne[0], H = v->ne[1], n_tokens = v->ne[2], n_seqs = v->ne[3];
    const int64_t K = ggml_get_op_params_i32(node, 0);
    for (const ggml_tensor * t : { q, k }) {
        if (!ggml_is_contiguous_rows(t) || t->ne[0] != S || t->ne[1] == 0 || t->ne[2] != n_tokens || t->ne[3] == 0 ||
                n_seqs % t->ne[3] != 0) {
            return false;
        }
    }
    return K >= 1 && ggml_is_contiguous(node) && ggml_is_contiguous_rows(v) && ggml_is_contiguous(g) && ggml_is_contiguous(beta) &&
        ggml_is_contiguous(state) && (g->ne[0] == 1 || g->ne[0] == S) && has_shape(g, g->ne[0], H, n_tokens, n_seqs) &&
        has_shape(beta, 1, H, n_tokens, n_seqs) && has_shape(state, S, S, H, n_seqs) &&
        (uint64_t) ggml_nelements(node) == ggml_nelements(v) +
            product({ (uint64_t) K, (uint64_t) S, (uint64_t) S, (uint64_t) H, (uint64_t) n_seqs });
}

static bool fits(const ggml_tensor * node, ggml_backend_t backend) {
    switch (node->op) {
        case GGML_OP_ACC:
        case GGML_OP_SET:             return fits_part(node);
        case GGML_OP_GET_ROWS:        return fits_get_rows(node);
        case GGML_OP_SET_ROWS:        return fits_set_rows(node, backend);
        case GGML_OP_SSM_SCAN:        return fits_ssm_scan(node);
        case GGML_OP_GATED_DELTA_NET: return fits_gated_delta_net(node);
        default:                      return true;
    }
}

static bool has_place(const ggml_tensor * t) {
    return t->buffer != nullptr || ggml_nbytes(t) == 0;
}

} // namespace rpc_check

// To be asked before ggml_new_tensor_4d, which aborts.
static bool rpc_check_shape(const rpc_tensor & t) {
    const uint64_t block = ggml_blck_size((ggml_type) t.type);
    uint64_t bytes = ggml_type_size((ggml_type) t.type);
    for (int i = 0; i < GGML_MAX_DIMS; i++) {
        const uint64_t n = i == 0 ? t.ne[i]/block : t.ne[i];
        bytes = rpc_check::product({ bytes, std::max<uint64_t>(1, n) }); // not too many rows of no elements either
    }
    if (t.op >= GGML_OP_COUNT || t.ne[0] % block != 0 || bytes > rpc_check::MAX_BYTES) {
        GGML_LOG_ERROR("[rpc_check] refused: a tensor of an operation or a shape that there cannot be\n");
        return false;
    }
    return true;
}

// Whether it lies within these bytes, those of its buffer.
static bool rpc_check_place(const rpc_tensor & t, uint64_t begin, uint64_t size) {
    const uint64_t block = ggml_blck_size((ggml_type) t.type);
    const uint64_t unit  = ggml_type_size((ggml_type) t.type);
    uint64_t needed = block == 1 ? unit : std::max<uint64_t>(t.nb[0], unit); // no less than ggml_nbytes
    for (int i = 0; i < GGML_MAX_DIMS; i++) {
        const uint64_t n    = i == 0 ? t.ne[i]/block : t.ne[i];
        const uint64_t step = i == 0 ? std::max<uint64_t>(t.nb[i], unit) : t.nb[i];
        if (n == 0) {
            needed = 0;
            break;
        }
        needed += rpc_check::product({ n - 1, step });
    }
    if (t.data < begin || t.data - begin > size || needed > size - (t.data - begin)) {
        GGML_LOG_ERROR("[rpc_check] refused: a tensor that is not within its buffer\n");
        return false;
    }
    return true;
}

// Whether there are such bytes of a tensor; ggml_backend_tensor_set and _get abort.
static bool rpc_check_range(const ggml_tensor * t, uint64_t offset, uint64_t size) {
    const uint64_t bytes = ggml_nbytes(t);
    return offset <= bytes && size <= bytes - offset;
}

static bool rpc_check_node(const ggml_tensor * node, ggml_backend_t backend) {
    if (!node) {
        GGML_LOG_ERROR("[rpc_check] refused: a graph with a node that there is not\n");
        return false;
    }
    bool ok = node->op != GGML_OP_MAP_CUSTOM1 && node->op != GGML_OP_MAP_CUSTOM2 && node->op != GGML_OP_MAP_CUSTOM3 &&
        node->op != GGML_OP_CUSTOM;
    // What back ends skip may be as it likes: slices of split mode "tensor" that are empty fit nowhere.
    if (ok && !ggml_op_is_empty(node->op) && !ggml_is_empty(node) && (node->flags & GGML_TENSOR_FLAG_COMPUTE)) {
        ok = rpc_check::has_place(node) && rpc_check::fits(node, backend);
        for (int i = 0; i < GGML_MAX_SRC; i++) {
            ok = ok && (!node->src[i] || rpc_check::has_place(node->src[i]));
        }
    }
    if (!ok) {
        GGML_LOG_ERROR("[rpc_check] refused: a graph with an operation %s that no client of llama.cpp sends\n", ggml_op_name(node->op));
    }
    return ok;
}
