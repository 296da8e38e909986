// SPDX-License-Identifier: GPL-3.0-or-later
//
// In a prompt more workers than two compute at the same time.
//
// A batch of a prompt is computed by one worker after the other, and llama.cpp begins the next one meanwhile. But upstream's RPC back end
// cannot copy from one worker to another later: the master fetches what a worker has computed, waits for it, and goes on only then. So the
// last worker alone computes beside another one, and more workers than two bring less, not more. With this a copy is two messages: the first,
// in the queue of the worker that has the data, fetches them; the second, in the other worker's queue, waits for the first one's answer
// and is sent with it. The thread that computes goes on with the next batch at once.
//
// A worker's messages keep their order. A message waits only for one that was put into a queue earlier, so no two can wait for each other.
// llama.cpp has four copies of what goes into a batch, so with many workers there are not batches enough under way for all of them.
// What waits in the queues takes memory of the master: beyond MOST_QUEUED it waits for an input of a graph to be sent, as it did for each.
//
// What is small is copied as before: it is of a token or a few, beside which there is nothing to compute, and no thread needs to wake for it.
//
// Included by ggml-rpc.cpp: it is part of that file.

#pragma once

// A message that is sent in its turn, and not before another one is done; what is returned tells when it is done itself.
std::shared_future<void> rpc_dispatcher::send_later(enum rpc_cmd cmd, std::shared_ptr<const void> input, size_t input_size, void * output,
                                                    size_t output_size, std::shared_future<void> after) {
    auto msg = std::make_shared<rpc_msg>();
    msg->cmd = cmd;
    msg->input = input;
    msg->input_size = input_size;
    msg->output = output;
    msg->output_size = output_size;
    msg->after = after;
    auto done = msg->completion.get_future().share();
    GGML_ASSERT(queue.push(msg));
    return done;
}

static constexpr size_t    MOST_QUEUED = 256 * 1024 * 1024;
static std::atomic<size_t> rpc_queued_inputs{0}; // their bytes, of all workers

// Send an input of a graph in its turn, as its worker may still compute for an earlier one; false if it has to be waited for.
bool rpc_dispatcher::send_input(const std::shared_ptr<uint8_t> & input, size_t input_size) {
    if (rpc_queued_inputs.fetch_add(input_size) + input_size > MOST_QUEUED) {
        rpc_queued_inputs -= input_size;
        return false;
    }
    const std::shared_ptr<const void> counted(input.get(), [input, input_size](const void *) { rpc_queued_inputs -= input_size; });
    send_async(RPC_CMD_SET_TENSOR, counted, input_size);
    return true;
}

struct rpc_copy {
    rpc_msg_get_tensor_req   request;
    std::shared_ptr<uint8_t> message; // the answer to the request is the end of it
};

static bool ggml_backend_rpc_cpy_tensor_async(ggml_backend_t backend_src, ggml_backend_t backend_dst, const ggml_tensor * src, ggml_tensor * dst) {
    constexpr size_t SMALL = 64 * 1024;
    const size_t size = ggml_nbytes(src);
    if (size <= SMALL || size != ggml_nbytes(dst) || !ggml_backend_is_rpc(backend_src) || !ggml_backend_is_rpc(backend_dst) ||
            !ggml_backend_buffer_is_rpc(src->buffer) || !ggml_backend_buffer_is_rpc(dst->buffer)) {
        return false;
    }
    const auto & from = ((ggml_backend_rpc_buffer_context *) src->buffer->context)->dispatcher;
    const auto & to   = ((ggml_backend_rpc_buffer_context *) dst->buffer->context)->dispatcher;
    // devices of one worker: it copies by itself
    if (from == to || from != ((ggml_backend_rpc_context *) backend_src->context)->dispatcher ||
            to != ((ggml_backend_rpc_context *) backend_dst->context)->dispatcher) {
        return false;
    }
    size_t head_size;
    const auto head = serialize_set_tensor(serialize_tensor(dst), 0, 0, "", 0, head_size);
    const auto copy = std::make_shared<rpc_copy>();
    copy->message = std::shared_ptr<uint8_t>(new uint8_t[head_size + size], std::default_delete<uint8_t[]>());
    memcpy(copy->message.get(), head.get(), head_size);
    copy->request.tensor = serialize_tensor(src);
    copy->request.offset = 0;
    copy->request.size   = size;
    const std::shared_ptr<const void> request(copy, &copy->request);
    const auto fetched = from->send_later(RPC_CMD_GET_TENSOR, request, sizeof(copy->request), copy->message.get() + head_size, size, {});
    to->send_later(RPC_CMD_SET_TENSOR, copy->message, head_size + size, nullptr, 0, fetched);
    return true;
}
