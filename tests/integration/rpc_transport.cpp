// SPDX-License-Identifier: GPL-3.0-or-later
//
// Two ends of a connection that never flush, and that signals interrupt. Says what it has seen; ended by an alarm if it hangs.

#include "transport.cpp"

#include <csignal>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>

#include <sys/time.h>

extern "C" void ggml_log_internal(enum ggml_log_level, const char *, ...) {}
extern "C" void ggml_abort(const char *, int, const char *, ...) { abort(); }

static int kept_alive() {
    int found = 0;
    for (int fd = 3; fd < 64; fd++) {
        int on = 0, idle = 0;
        socklen_t size = sizeof(on);
        getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, &size);
        getsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, &size);
        found += on && idle == 1;
    }
    return found;
}

static std::string received(const socket_ptr & from) {
    char word[5] = "";
    return from->recv_data(word, 4) ? word : "nothing";
}

int main(int, char ** argv) {
    alarm(60);
    // Without SA_RESTART, as a chat's handler of Ctrl-C is.
    struct sigaction quiet = {};
    quiet.sa_handler       = [](int) {};
    sigaction(SIGVTALRM, &quiet, nullptr);

    const int  port   = atoi(argv[1]);
    const auto server = socket_t::create_server("127.0.0.1", port);
    std::thread worker([&] {
        const auto client = server->accept();
        printf("asked: %s\n", received(client).c_str());
        // The master is interrupted while it waits.
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        client->send_data("pong", 4);
        printf("told at the end: %s\n", received(client).c_str());
    });
    auto master = socket_t::connect("127.0.0.1", port);
    std::thread interrupting([thread = pthread_self()] {
        for (int i = 0; i < 20; i++) {
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
            pthread_kill(thread, SIGVTALRM);
        }
    });
    master->send_data("pi", 2);
    master->send_data("ng", 2);
    printf("answered: %s\n", received(master).c_str());
    printf("kept alive: %d\n", kept_alive());
    interrupting.join();
    master->send_data("over", 4);
    master.reset();
    worker.join();
}
