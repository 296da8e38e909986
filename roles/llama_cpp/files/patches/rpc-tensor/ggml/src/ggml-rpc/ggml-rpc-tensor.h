// SPDX-License-Identifier: GPL-3.0-or-later
//
// What makes split mode "tensor" pay over RPC. There the layers are computed by all workers together, each with a slice of the weights;
// twice a layer their partial results are summed up. All of this is done by the master, with the messages of upstream:
//
// - Inputs of a graph are sent as leaves. Upstream sends each with its sources, theirs, and so on, though the worker reads but its data;
//   with some fifty graphs a token, of few nodes each, that was nearly all that went over the wire, and grew with the model's depth.
// - Partial results are fetched from all workers at the same time, summed up here and sent back to all. Without such a function the meta
//   back end fetches one after the other and has each worker add, which is one more graph for each worker and sum.
// - Slices that are not of one piece in the model (set_tensor_2d) are sent as one message, not one for each row, so that the worker's
//   cache knows them.
//
// Included by ggml-rpc.cpp: it is part of that file.

#pragma once

// A tensor that the worker only reads: how it came to be is of no use there. It stays a view if it is one.
static void rpc_make_leaf(rpc_tensor & tensor) {
    tensor.op = GGML_OP_NONE;
    memset(tensor.op_params, 0, sizeof(tensor.op_params));
    memset(tensor.src, 0, sizeof(tensor.src));
}

static void ggml_backend_rpc_buffer_set_tensor_2d(ggml_backend_buffer_t buffer, ggml_tensor * tensor, const void * data, size_t offset,
                                                  size_t size, size_t n_copies, size_t stride_tensor, size_t stride_data) {
    const char * rows = (const char *) data;
    if (stride_tensor != size) {
        for (size_t i = 0; i < n_copies; i++) {
            ggml_backend_rpc_buffer_set_tensor(buffer, tensor, rows + i*stride_data, offset + i*stride_tensor, size);
        }
        return;
    }
    std::unique_ptr<char[]> whole(new char[n_copies*size]);
    for (size_t i = 0; i < n_copies; i++) {
        memcpy(whole.get() + i*size, rows + i*stride_data, size);
    }
    ggml_backend_rpc_buffer_set_tensor(buffer, tensor, whole.get(), offset, n_copies*size);
}

struct rpc_comm {
    std::vector<ggml_backend_rpc_context *> backends;
    std::vector<std::vector<float>>         parts;
};

static void * ggml_backend_rpc_comm_init(ggml_backend_t * backends, size_t n_backends) {
    if (n_backends < 2) { // what one has computed is no part
        return nullptr;
    }
    auto comm = std::make_unique<rpc_comm>();
    for (size_t i = 0; i < n_backends; i++) {
        if (!ggml_backend_is_rpc(backends[i])) {
            return nullptr;
        }
        comm->backends.push_back((ggml_backend_rpc_context *) backends[i]->context);
    }
    comm->parts.resize(n_backends);
    return comm.release();
}

static void ggml_backend_rpc_comm_free(void * comm) {
    delete (rpc_comm *) comm;
}

// Replace each of the tensors, one of each backend, by their sum; false if that is left to the meta backend.
static bool ggml_backend_rpc_comm_allreduce_tensor(void * handle, struct ggml_tensor ** tensors) {
    rpc_comm & comm = *(rpc_comm *) handle;
    const size_t n = comm.backends.size();
    const size_t n_values = ggml_nelements(tensors[0]);
    for (size_t i = 0; i < n; i++) {
        const ggml_tensor * t = tensors[i];
        if (t->type != GGML_TYPE_F32 || !ggml_is_contiguous(t) || !t->buffer || !ggml_backend_buffer_is_rpc(t->buffer) ||
                (size_t) ggml_nelements(t) != n_values || n_values == 0) {
            return false;
        }
    }
    for (size_t i = n; i-- > 0; ) {
        comm.parts[i].assign(n_values, 0.0f);
        if (tensors[i]->flags & GGML_TENSOR_FLAG_COMPUTE) { // one without is a slice of size zero: nothing has been computed
            auto request = std::make_shared<rpc_msg_get_tensor_req>();
            request->tensor = serialize_tensor(tensors[i]);
            request->offset = 0;
            request->size   = n_values*sizeof(float);
            auto & dispatcher = comm.backends[i]->dispatcher;
            if (i == 0) { // the last one that is asked: there is nothing to do but wait for it
                dispatcher->send(RPC_CMD_GET_TENSOR, request, sizeof(*request), comm.parts[i].data(), request->size);
            } else {
                dispatcher->send_async(RPC_CMD_GET_TENSOR, request, sizeof(*request), comm.parts[i].data(), request->size);
            }
        }
    }
    for (auto * backend : comm.backends) {
        backend->dispatcher->synchronize();
    }
    const auto add = [&](size_t dst, size_t src) {
        for (size_t k = 0; k < n_values; k++) {
            comm.parts[dst][k] += comm.parts[src][k];
        }
    };
    // in the order of the meta backend, so that the sums are the same to the last bit
    size_t step = n/2;
    while ((step & (step - 1)) != 0) {
        step--;
    }
    for (size_t i = 2*step; i < n; i++) {
        add(i - 2*step, i);
    }
    for (; step >= 1; step /= 2) {
        for (size_t i = 0; i < step; i++) {
            add(i, i + step);
        }
    }
    for (size_t i = 0; i < n; i++) {
        size_t input_size;
        auto input = serialize_set_tensor(serialize_tensor(tensors[i]), 0, 0, comm.parts[0].data(), n_values*sizeof(float), input_size);
        comm.backends[i]->dispatcher->send_async(RPC_CMD_SET_TENSOR, input, input_size);
    }
    return true;
}

// The names by which the meta back end asks for such functions.
static void * rpc_tensor_proc_address(const char * name) {
    if (strcmp(name, "ggml_backend_comm_init") == 0) {
        return (void *) ggml_backend_rpc_comm_init;
    }
    if (strcmp(name, "ggml_backend_comm_free") == 0) {
        return (void *) ggml_backend_rpc_comm_free;
    }
    if (strcmp(name, "ggml_backend_comm_allreduce_tensor") == 0) {
        return (void *) ggml_backend_rpc_comm_allreduce_tensor;
    }
    return nullptr;
}
