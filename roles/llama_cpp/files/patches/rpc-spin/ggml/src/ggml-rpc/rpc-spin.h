// SPDX-License-Identifier: GPL-3.0-or-later
//
// A worker stays awake between the requests of a client.
//
// While another worker computes its layers, or the master sums up and sends, a worker waits for a millisecond or ten. Upstream's sleeps
// then, and so does its core: to wake both takes time at each token, and more on virtual machines. Here the thread that waits looks
// for the next request by itself for a while before it sleeps.
//
// It takes little from others: it offers its core each time, and if it has not come back at once, somebody computes there, and it
// sleeps. Shorter work of others, such as a master's on the same host, does not count. What it may take is a time slice, which the
// kernel gives to who has slept.
//
// GGML_RPC_SPIN=0 turns it off.
//
// Included by transport.cpp: it is part of that file.

#pragma once

#if !defined(_WIN32)

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include <sched.h>
#include <sys/socket.h>

namespace rpc_spin {

// As long as a token takes where waking up matters. Where one takes longer, it matters less.
static constexpr std::chrono::milliseconds LONGEST{20};
// What computes on a core keeps it for some milliseconds at a time.
static constexpr std::chrono::milliseconds TAKEN{1};

static bool enabled() {
    static const bool on = [] {
        const char * text = std::getenv("GGML_RPC_SPIN");
        return text == nullptr || std::strcmp(text, "0") != 0;
    }();
    return on;
}

// Return when something can be received, when the peer has gone, or when it is time to sleep.
static void wait(int fd) {
    using clock = std::chrono::steady_clock;
    clock::time_point last = clock::now();
    const clock::time_point end = last + LONGEST;
    char next;
    while (enabled() && recv(fd, &next, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
        sched_yield();
        const clock::time_point now = clock::now();
        if (now >= end || now - last >= TAKEN) {
            return;
        }
        last = now;
    }
}

}  // namespace rpc_spin

#endif
