-- SPDX-License-Identifier: GPL-3.0-or-later
-- Holds a request until a group serves its model, or until its time is over. HAProxy itself would refuse a request at
-- once if no server is up. A server named `wait` leads here, and is not a group.

core.register_action("wait_for_group", { "http-req" }, function(txn)
    -- nil if a reload has removed the model meanwhile.
    local backend = core.backends[txn.f:req_hdr("x-llama-backend")]
    local servers = backend and backend.servers or {}
    local deadline = tonumber(txn.f:req_hdr("x-llama-deadline"))
    repeat
        for name, server in pairs(servers) do
            if name ~= "wait" and server:get_stats().status:find("^UP") then
                return
            end
        end
        core.msleep(200)
    until core.now().sec >= deadline
end)

-- Gives a group that was just lost time to end, before its request goes to another group.
core.register_action("pause", { "http-req" }, function()
    core.msleep(500)
end)

-- Converts a certificate's time, which HAProxy writes as YYMMDDhhmmssZ (UTC), to seconds since 1970.
core.register_converters("seconds", function(text)
    local year, month, day, hour, minute, second = text:match("^(%d%d)(%d%d)(%d%d)(%d%d)(%d%d)(%d%d)")
    if not year then
        return nil
    end
    -- Years begin in March here, so that a leap day is the last one.
    year = 2000 + year - (month < "03" and 1 or 0)
    local days = 365 * year + year // 4 - year // 100 + year // 400 + (153 * ((month + 9) % 12) + 2) // 5 + day - 719469
    return math.floor(((days * 24 + hour) * 60 + minute) * 60 + second)
end)
