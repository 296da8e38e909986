// SPDX-License-Identifier: GPL-3.0-or-later
//
// Tells the RPC backend, if there is one, which tensors the loader is about to load into its workers: see ggml-rpc-load.h.

#pragma once

#include "llama-model-loader.h"

#include "ggml-backend.h"

#include <utility>
#include <vector>

class llama_rpc_load {
public:
    llama_rpc_load(const llama_model_loader & ml, const std::vector<std::pair<ggml_context *, llama_buf_map>> & ctx_buf_maps) {
        ggml_backend_reg_t reg = ggml_backend_reg_by_name("RPC");
        if (!reg || !ml.use_mmap) { // without a mapping there are no bytes yet
            return;
        }
        const auto begin = (void * (*)(ggml_tensor * const *, const void * const *, size_t))
            ggml_backend_reg_get_proc_address(reg, "ggml_backend_rpc_load_begin");
        end = (void (*)(void *)) ggml_backend_reg_get_proc_address(reg, "ggml_backend_rpc_load_end");
        if (!begin || !end) {
            return;
        }
        std::vector<ggml_tensor *> tensors;
        std::vector<const void *>  data;
        for (const auto & ctx_buf_map : ctx_buf_maps) {
            for (ggml_tensor * cur = ggml_get_first_tensor(ctx_buf_map.first); cur; cur = ggml_get_next_tensor(ctx_buf_map.first, cur)) {
                const auto * weight = ml.get_weight(ggml_get_name(cur));
                ggml_backend_dev_t dev = weight && cur->buffer ? ggml_backend_buft_get_device(ggml_backend_buffer_get_type(cur->buffer)) : nullptr;
                if (dev && ggml_backend_dev_backend_reg(dev) == reg) {
                    tensors.push_back(cur);
                    data.push_back((const uint8_t *) ml.mappings.at(weight->idx)->addr() + weight->offs);
                }
            }
        }
        if (!tensors.empty()) {
            handle = begin(tensors.data(), data.data(), tensors.size());
        }
    }

    ~llama_rpc_load() {
        if (handle) {
            end(handle);
        }
    }

    llama_rpc_load(const llama_rpc_load &) = delete;
    llama_rpc_load & operator=(const llama_rpc_load &) = delete;

private:
    void * handle = nullptr;
    void (*end)(void *) = nullptr;
};
