// SPDX-License-Identifier: GPL-3.0-or-later
//
// Loading a model into RPC workers: hash ahead, and serve the workers side by side.
//
// Upstream hands the weights over one after the other. For each above HASH_THRESHOLD the master computes its FNV-1a hash (a chain of
// dependent multiplications, about 1 GB/s), asks the worker whether its cache has those bytes, and waits; meanwhile the worker idles, and
// all workers but one. Here the loader says beforehand what it will load (ggml_backend_rpc_load_begin). A few threads hash it, each eight
// tensors at a time, which fills the multiplier that one chain leaves idle; a thread for each worker makes the same requests as
// upstream, in the order of the loader. The loader's own call for such a tensor (rpc_load_done) then only waits for its end. If a thread
// fails, for want of memory or of threads, what is left is loaded as by upstream, which says what is wrong.
//
// The messages, the hashes and so the names in the worker's cache are those of upstream. Included by ggml-rpc.cpp: it is part of that file.

#pragma once

namespace rpc_load {

struct worker;

struct job {
    ggml_tensor   * tensor;
    const uint8_t * data;
    size_t          size;
    worker        * of;
    uint64_t        hash   = 0xcbf29ce484222325ULL; // what fnv_hash begins with
    bool            hashed = false;
    bool            loaded = false;
};

struct worker {
    std::vector<job *> jobs;
    bool               ended = false; // nothing more of it is loaded ahead
};

// Tensors copied into messages at a time; upstream holds one tensor, and so does this if it is a larger one.
static const size_t MAX_BYTES_IN_FLIGHT = 512u * 1024 * 1024;
// Tensors hashed and not loaded; of a model that does not fit into the master's memory, more would be read from the disk again.
static const size_t MAX_BYTES_AHEAD = 2048u * 1024 * 1024;

static const int N_LANES = 8;

static ggml_backend_rpc_buffer_context * context_of(const job & j) {
    return (ggml_backend_rpc_buffer_context *) j.tensor->buffer->context;
}

// Continue as many hashes by n bytes each, side by side; each as by fnv_hash.
static void fnv_hash_lanes(const uint8_t * const data[N_LANES], size_t n, uint64_t hash[N_LANES]) {
    const uint64_t fnv_prime = 0x100000001b3ULL;
    uint64_t h[N_LANES]; // local, so that the compiler keeps it in registers
    std::copy(hash, hash + N_LANES, h);
    for (size_t i = 0; i < n; i++) {
        for (int lane = 0; lane < N_LANES; lane++) {
            h[lane] = (h[lane] ^ data[lane][i]) * fnv_prime;
        }
    }
    std::copy(h, h + N_LANES, hash);
}

class session {
public:
    session(ggml_tensor * const * tensors, const void * const * data, size_t n) {
        std::unordered_map<rpc_dispatcher *, worker *> of_dispatcher;
        jobs.reserve(n); // neither moves: there are pointers to them
        workers.reserve(n);
        for (size_t i = 0; i < n; i++) {
            const size_t size = ggml_nbytes(tensors[i]);
            if (!ggml_backend_buffer_is_rpc(tensors[i]->buffer) || !rpc_use_hash_cache(tensors[i], size)) {
                continue;
            }
            jobs.push_back({ tensors[i], (const uint8_t *) data[i], size, nullptr });
            worker *& of = of_dispatcher[context_of(jobs.back())->dispatcher.get()];
            if (!of) {
                workers.emplace_back();
                of = &workers.back();
            }
            jobs.back().of = of;
            of->jobs.push_back(&jobs.back());
            by_tensor[tensors[i]] = &jobs.back();
        }
        // the first of each worker, the second of each worker, ...: none waits until another one's are hashed, but for a slow one, whose
        // tensors fill MAX_BYTES_AHEAD
        for (size_t i = 0; to_hash.size() < jobs.size(); i++) {
            for (const worker & w : workers) {
                if (i < w.jobs.size()) {
                    to_hash.push_back(w.jobs[i]);
                }
            }
        }
        const size_t n_hashers = std::min<size_t>((jobs.size() + N_LANES - 1) / N_LANES,
                                                  std::min(4u, std::max(1u, std::thread::hardware_concurrency())));
        try {
            threads.reserve(n_hashers + workers.size());
            for (size_t i = 0; i < n_hashers; i++) {
                threads.emplace_back([this] { hash_all(); });
            }
            for (worker & w : workers) {
                threads.emplace_back([this, &w] { load_all(w); });
            }
        } catch (...) {
            stop();
            throw;
        }
    }

    void stop() {
        {
            std::lock_guard<std::mutex> lock(mutex);
            stopped = true;
        }
        changed.notify_all();
        for (auto & thread : threads) {
            thread.join();
        }
    }

    // Wait until the worker has the tensor; false if it is not one of these, if its bytes are others, or if it is left to the caller.
    bool done(const ggml_tensor * tensor, const void * data, size_t offset, size_t size) {
        const auto it = by_tensor.find(tensor);
        if (it == by_tensor.end() || it->second->data != data || it->second->size != size || offset != 0) {
            return false;
        }
        std::unique_lock<std::mutex> lock(mutex);
        changed.wait(lock, [&] { return it->second->loaded || it->second->of->ended; });
        return it->second->loaded;
    }

private:
    bool may_begin() const {
        return next < to_hash.size() && (ahead == 0 || ahead + to_hash[next]->size <= MAX_BYTES_AHEAD);
    }

    void hash_all() {
        struct { job * work = nullptr; size_t at = 0; } lanes[N_LANES];
        while (true) {
            size_t n = 1024 * 1024; // so that a cancelled load ends soon
            job * any = nullptr;
            {
                std::unique_lock<std::mutex> lock(mutex);
                while (any == nullptr) {
                    for (auto & lane : lanes) {
                        if (lane.work == nullptr && may_begin()) {
                            lane = { to_hash[next++], 0 };
                            ahead += lane.work->size;
                        }
                        if (lane.work != nullptr) {
                            any = lane.work;
                            n = std::min(n, lane.work->size - lane.at);
                        }
                    }
                    if (any == nullptr) {
                        changed.wait(lock, [&] { return stopped || next == to_hash.size() || may_begin(); });
                        if (next == to_hash.size()) {
                            return;
                        }
                    }
                    if (stopped) {
                        return;
                    }
                }
            }
            const uint8_t * data[N_LANES];
            uint64_t        hash[N_LANES];
            for (int i = 0; i < N_LANES; i++) { // a lane without work repeats another one's, for nothing
                data[i] = lanes[i].work ? lanes[i].work->data + lanes[i].at : any->data;
                hash[i] = lanes[i].work ? lanes[i].work->hash : 0;
            }
            fnv_hash_lanes(data, n, hash);
            bool whole = false;
            std::unique_lock<std::mutex> lock(mutex);
            for (int i = 0; i < N_LANES; i++) {
                if (lanes[i].work == nullptr) {
                    continue;
                }
                lanes[i].work->hash = hash[i];
                lanes[i].at += n;
                if (lanes[i].at == lanes[i].work->size) {
                    lanes[i].work->hashed = true;
                    lanes[i].work = nullptr;
                    whole = true;
                }
            }
            lock.unlock();
            if (whole) {
                changed.notify_all();
            }
        }
    }

    void load_all(worker & w) {
        bool failed = false;
        try {
            for (size_t i = 0; i < w.jobs.size() && load(*w.jobs[i]); i++) {
            }
        } catch (const std::exception & e) {
            GGML_LOG_WARN("[rpc_load] %s: the rest is loaded one after another\n", e.what());
            failed = true;
        }
        {
            std::lock_guard<std::mutex> lock(mutex);
            w.ended = true;
            stopped = stopped || failed;
        }
        changed.notify_all();
    }

    // What ggml_backend_rpc_buffer_set_tensor does; false if it is to stop.
    bool load(job & j) {
        {
            std::unique_lock<std::mutex> lock(mutex);
            changed.wait(lock, [&] { return j.hashed || stopped; });
            if (stopped) {
                return false;
            }
        }
        auto & dispatcher = context_of(j)->dispatcher;
        auto request = std::make_shared<rpc_msg_set_tensor_hash_req>();
        request->tensor = serialize_tensor(j.tensor);
        request->offset = 0;
        request->hash   = j.hash;
        rpc_msg_set_tensor_hash_rsp response;
        dispatcher->send(RPC_CMD_SET_TENSOR_HASH, request, sizeof(*request), &response, sizeof(response));
        if (!response.result) {
            {
                std::unique_lock<std::mutex> lock(mutex);
                changed.wait(lock, [&] { return in_flight == 0 || in_flight + j.size <= MAX_BYTES_IN_FLIGHT || stopped; });
                if (stopped) {
                    return false;
                }
                in_flight += j.size;
            }
            {
                size_t input_size;
                auto input = serialize_set_tensor(request->tensor, 1, 0, j.data, j.size, input_size);
                dispatcher->send(RPC_CMD_SET_TENSOR, input, input_size);
            }
            std::lock_guard<std::mutex> lock(mutex);
            in_flight -= j.size;
        }
        {
            std::lock_guard<std::mutex> lock(mutex);
            ahead -= j.size;
            j.loaded = true;
        }
        changed.notify_all();
        return true;
    }

    std::vector<job>                               jobs;
    std::vector<worker>                            workers;
    std::unordered_map<const ggml_tensor *, job *> by_tensor;
    std::vector<job *>                             to_hash;
    std::vector<std::thread>                       threads;
    std::mutex                                     mutex; // guards what follows, and hashed, loaded and ended above
    std::condition_variable                        changed;
    size_t                                         next      = 0;
    size_t                                         ahead     = 0;
    size_t                                         in_flight = 0;
    bool                                           stopped   = false;
};

static std::mutex                            sessions_mutex;
static std::vector<std::shared_ptr<session>> sessions; // more than one if several models are loaded at the same time

} // namespace rpc_load

// Begin to load tensors whose buffers and bytes exist and stay until rpc_load_end; all but large weights of RPC workers are left alone.
static void * ggml_backend_rpc_load_begin(ggml_tensor * const * tensors, const void * const * data, size_t n) {
    try {
        std::lock_guard<std::mutex> lock(rpc_load::sessions_mutex);
        rpc_load::sessions.reserve(rpc_load::sessions.size() + 1); // what has begun is in there, come what may
        rpc_load::sessions.push_back(std::make_shared<rpc_load::session>(tensors, data, n));
        return rpc_load::sessions.back().get();
    } catch (const std::exception & e) {
        GGML_LOG_WARN("[rpc_load] %s: weights are loaded one after another\n", e.what());
        return nullptr;
    }
}

// Stop what is not done; nothing of the tensors is used any more when this returns.
static void ggml_backend_rpc_load_end(void * handle) {
    std::shared_ptr<rpc_load::session> ended;
    {
        std::lock_guard<std::mutex> lock(rpc_load::sessions_mutex);
        auto & all = rpc_load::sessions;
        for (size_t i = 0; i < all.size(); i++) {
            if (all[i].get() == handle) {
                ended = all[i];
                all.erase(all.begin() + i);
                break;
            }
        }
    }
    if (ended) {
        ended->stop();
    }
}

// Whether the tensor has been loaded ahead; waits for it.
static bool rpc_load_done(const ggml_tensor * tensor, const void * data, size_t offset, size_t size) {
    std::vector<std::shared_ptr<rpc_load::session>> all;
    {
        std::lock_guard<std::mutex> lock(rpc_load::sessions_mutex);
        all = rpc_load::sessions;
    }
    for (const auto & s : all) {
        if (s->done(tensor, data, offset, size)) {
            return true;
        }
    }
    return false;
}

static void * rpc_load_proc_address(const char * name) {
    if (strcmp(name, "ggml_backend_rpc_load_begin") == 0) {
        return (void *) ggml_backend_rpc_load_begin;
    }
    if (strcmp(name, "ggml_backend_rpc_load_end") == 0) {
        return (void *) ggml_backend_rpc_load_end;
    }
    return nullptr;
}
