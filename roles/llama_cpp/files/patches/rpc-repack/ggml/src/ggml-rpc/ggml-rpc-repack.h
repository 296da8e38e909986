// SPDX-License-Identifier: GPL-3.0-or-later
//
// Weights of an RPC worker's CPU in the layouts that its fast matrix kernels want.
//
// A client stores weights as they are in the model's file, and so they lie in the worker's memory. The CPU back end has
// faster kernels for many quantised types, which want groups of rows interleaved (its buffer type "CPU_REPACK"); local
// inference uses them. Here a worker interleaves by itself what is only multiplied, in place, as the size is the same.
// No client can tell, but by the time that it takes: before anything else reads or writes such a weight, it is put back.
//
// GGML_RPC_REPACK=0 turns it off. GGML_RPC_STATUS=<path> names a file that says, as JSON, what was done, and in which
// start of a systemd unit: what an earlier process has left there can be told from it.
#pragma once

#include "ggml-backend-impl.h"

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

struct rpc_repack_layout;

// What is known about the weights of one client.
class rpc_repack {
  public:
    explicit rpc_repack(size_t n_devices);
    ~rpc_repack();
    rpc_repack(const rpc_repack &) = delete;
    rpc_repack & operator=(const rpc_repack &) = delete;

    // Finds the kernels of the CPU among the devices that are served, and says which. Once, before the first client.
    static void start(size_t n_devices, ggml_backend_dev_t * devices);

    // In place of ggml_backend_tensor_set.
    bool set_tensor(ggml_tensor * tensor, const void * data, size_t offset, size_t size);
    // From here on these bytes of the tensor are as the client stored them. To be called before they are read or written.
    bool put_back(const ggml_tensor * tensor, size_t offset, size_t size);
    // What lies in this buffer is nobody's weight any more.
    void forget(ggml_backend_buffer_t buffer);
    // To be called before a graph is computed: a new one, or the one that the device computed last.
    bool prepare(size_t device, ggml_backend_t backend, ggml_cgraph * graph, bool is_new);

    // The three return false, and say why, if the weight cannot be had as it was: the client must not go on.

  private:
    struct weight {
        ggml_tensor               tensor;   // type, shape, place and buffer as the client knows them
        const rpc_repack_layout * layout;   // nullptr: there is no kernel for this type and shape
        bool                      packed;   // is in that layout
        bool                      barred;   // a graph does with it what the kernels cannot
        bool                      used;     // a graph multiplies with it
        int                       changes;  // how often it was put back, or came anew
        uint64_t                  seen;     // the last graph that it was part of
    };

    // By the address of the first byte; none overlaps another.
    using weights_of_buffer = std::map<uintptr_t, weight>;

    struct patched_tensor {
        ggml_tensor *         tensor;
        ggml_backend_buffer_t buffer;
    };

    struct device_graph {
        std::vector<patched_tensor> patched;
        uint64_t                    generation;
    };

    weight * add(const ggml_tensor * tensor);
    weight * find(const ggml_tensor * tensor);
    template <typename F> void each_within(const ggml_tensor * tensor, size_t offset, size_t size, F && f);
    void pack(weight & w);
    bool unpack(weight & w);
    void tell();

    struct tally {
        size_t n        = 0;
        size_t bytes    = 0;
        size_t of_n     = 0;
        size_t of_bytes = 0;
    };

    tally counted() const;

    std::unordered_map<ggml_backend_buffer_t, weights_of_buffer> weights;
    std::vector<device_graph>                                    graphs;
    uint64_t generation = 0;  // grows when the layout of a weight changes
    uint64_t n_graphs   = 0;
    bool     untold     = false;
};
