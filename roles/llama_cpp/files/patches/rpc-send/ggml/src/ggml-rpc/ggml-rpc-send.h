// SPDX-License-Identifier: GPL-3.0-or-later
//
// A master that sends small messages itself.
//
// Upstream's master has a thread for each worker, which sends and receives for it: whoever wants something of a worker puts a message into
// that thread's queue, and mostly waits until it is through. So a token's messages, six small tensors and the order to compute for each
// worker, have two threads wake each other some twenty times, while no worker computes. With this the one that wants something sends it,
// and takes the answer, if the worker's queue is empty and nothing is under way; then there is nothing to wait for either. What is large
// goes through the queue as before, as does what is to be answered later: a worker that computes does not read, and the master has
// others to serve meanwhile.
//
// The messages of a worker are as they were, and in the same order, as long as each thread looks at its own: what one has put into the queue
// keeps it from sending past it. Included by ggml-rpc.cpp: it is part of that file.

#pragma once

class rpc_direct {
public:
    // The queue's messages that are not done, counted by the queue as they come.
    explicit rpc_direct(std::atomic<size_t> & unfinished) : unfinished(unfinished) {}

    bool is_idle() const { return unfinished == 0; }

    // Send a message and take its answer if it has one; false if it has to go through the queue.
    bool send(const socket_ptr & sock, enum rpc_cmd cmd, const void * input, size_t input_size, void * output = nullptr, size_t output_size = 0) {
        if (input_size > MAX_BYTES) {
            return false;
        }
        std::unique_lock<std::mutex> turn(sending, std::try_to_lock);
        if (!turn.owns_lock() || !is_idle()) {
            return false;
        }
        const bool status = output ? send_rpc_cmd(sock, cmd, input, input_size, output, output_size) : send_rpc_cmd(sock, cmd, input, input_size);
        RPC_STATUS_ASSERT(status);
        return true;
    }

    // Around what the queue's thread does for a message. It ends before whoever waits for the message hears of it, and may send the next one.
    void begin() { sending.lock(); }
    void end() {
        sending.unlock();
        unfinished--;
    }

private:
    // Of the widest models' activations for a token, and far less than sockets hold, so that nobody waits for a worker that computes.
    static constexpr size_t MAX_BYTES = 64 * 1024;

    std::atomic<size_t> & unfinished;
    std::mutex            sending; // one message at a time, whole
};
