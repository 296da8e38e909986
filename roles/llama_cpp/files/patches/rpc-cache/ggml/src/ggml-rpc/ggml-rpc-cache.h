// SPDX-License-Identifier: GPL-3.0-or-later
//
// Entries of a worker's tensor cache: files whose names are the digests of their bytes.
//
// Upstream's server writes an entry in place and looks neither at whether it could, nor at what it reads: an entry that a full disk has
// cut off, or that something has changed, is served as the weight that it is named after, and the model says something else. Here
// an entry gets its name when it is whole, and one that is not what its name says is none: the client sends the weight, which takes
// the entry's place.
//
// To digest what is read takes longer than to read it. So an entry that was found to be right carries a stamp, made of its digest and
// its size: the part of a second of the time at which it was changed. Whoever writes to the file changes that time, and who cuts it
// off the size, also where a computer that loses its power loses the end of a file. A disk that forgets bits by itself is noticed
// by rpc-cache, which reads all entries again from time to time. It stamps what it adds in the same way.
//
// GGML_RPC_CACHE_MIN_FREE=<bytes, with K, M, G or T, or a part such as 10%>: how much of the disk no entry is to take.
// GGML_RPC_CACHE_STATUS=<path> names a file that says, as JSON, what the cache was good for, and in which start of a systemd unit.
//
// Included by ggml-rpc.cpp: it is part of that file.

#pragma once

#include <cerrno>
#include <cstdlib>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

namespace rpc_cache {

// What clients have asked this process for: what came from the cache, what was not there, and what was there but not right.
struct tally {
    uint64_t hits, hit_bytes, misses, damaged;
};

static tally & counted() {
    static tally all;
    return all;
}

// Best effort: a worker works without it. No more than a load's weights make it be written.
static void tell() {
    const char * path = std::getenv("GGML_RPC_CACHE_STATUS");
    const char * id   = std::getenv("INVOCATION_ID");
    if (!path) {
        return;
    }
    const std::string part = std::string(path) + ".new";
    {
        std::ofstream file(part, std::ios::trunc);
        file << "{\"invocation\": \"" << (id && strspn(id, "0123456789abcdef") == strlen(id) ? id : "") << "\", \"use\": {\"hits\": "
             << counted().hits << ", \"hit_bytes\": " << counted().hit_bytes << ", \"misses\": " << counted().misses
             << ", \"damaged\": " << counted().damaged << "}}\n";
        if (!file.flush()) {
            return;
        }
    }
    std::error_code error;
    using p = fs::perms;
    fs::permissions(part, p::owner_read | p::owner_write | p::group_read | p::others_read, error);
    fs::rename(part, path, error);
}

static long stamp(uint64_t hash, uint64_t size) {
    return (hash ^ size*0x9e3779b97f4a7c15ull) % 1000000000;
}

// Best effort: without it, the entry is digested when it is used.
static void set_stamp(int fd, time_t changed, long stamp) {
    const timespec times[2] = { { 0, UTIME_OMIT }, { changed, stamp } };
    futimens(fd, times);
}

// What is to stay free of a disk of this size. What says nothing that can be understood says nothing.
static uint64_t min_free(uint64_t disk) {
    const char * text = std::getenv("GGML_RPC_CACHE_MIN_FREE");
    if (!text || *text < '0' || *text > '9') {
        return 0;
    }
    char *         unit   = nullptr;
    const uint64_t number = strtoull(text, &unit, 10);
    const char *   units  = "KMGT";
    const char *   found  = *unit ? strchr(units, *unit) : nullptr;
    return *unit == '%' ? uint64_t(double(disk)*double(number)/100) : found ? number << 10*(found - units + 1) : number;
}

static bool write_all(int fd, const uint8_t * data, size_t size) {
    while (size > 0) {
        const ssize_t done = write(fd, data, size);
        if (done < 0 && errno == EINTR) {
            continue;
        }
        if (done <= 0) {
            return false;
        }
        data += done;
        size -= size_t(done);
    }
    return true;
}

static bool read_all(int fd, uint8_t * data, size_t size) {
    while (size > 0) {
        const ssize_t done = read(fd, data, size);
        if (done < 0 && errno == EINTR) {
            continue;
        }
        if (done <= 0) {
            return false;
        }
        data += done;
        size -= size_t(done);
    }
    return true;
}

// An entry that cannot be kept is a load from the network the next time, and no more.
static void store(const fs::path & entry, uint64_t hash, const void * data, size_t size) {
    struct statvfs disk;
    if (statvfs(entry.parent_path().c_str(), &disk) == 0) {
        const uint64_t left = uint64_t(disk.f_bavail)*disk.f_frsize;
        if (left < size || left - size < min_free(uint64_t(disk.f_blocks)*disk.f_frsize)) {
            GGML_LOG_WARN("[rpc_cache] not kept, as the disk has too little room: '%s'\n", entry.c_str());
            return;
        }
    }
    // Beside the entries, under a name that rpc-cache takes for what was left unfinished.
    const fs::path part = entry.parent_path() / (".part-" + entry.filename().string() + "-" + std::to_string(getpid()));
    const int      fd   = open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd >= 0 && write_all(fd, static_cast<const uint8_t *>(data), size)) {
        set_stamp(fd, time(nullptr), stamp(hash, size));
        if (rename(part.c_str(), entry.c_str()) == 0) {
            close(fd);
            GGML_LOG_INFO("[rpc_cache] saved to '%s'\n", entry.c_str());
            return;
        }
    }
    GGML_LOG_WARN("[rpc_cache] not kept: '%s' (%s)\n", entry.c_str(), strerror(errno));
    if (fd >= 0) {
        close(fd);
        unlink(part.c_str());
    }
}

// Returns whether there is such an entry that is what its name says, and its bytes.
static bool load(const fs::path & entry, uint64_t hash, std::vector<uint8_t> & data) {
    const int   fd = open(entry.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    struct stat about;
    bool        right = fd >= 0 && fstat(fd, &about) == 0 && S_ISREG(about.st_mode);
    if (right) {
        try {
            data.resize(about.st_size);
            right = read_all(fd, data.data(), data.size());
        } catch (const std::exception & e) { // more than there is memory is no weight of this client
            right = false;
        }
        if (right && about.st_mtim.tv_nsec != stamp(hash, data.size())) {
            right = fnv_hash(data.data(), data.size()) == hash;
            if (right) {
                set_stamp(fd, about.st_mtim.tv_sec, stamp(hash, data.size()));
            }
        }
        if (!right) {
            GGML_LOG_WARN("[rpc_cache] not used, as it is not what its name says: '%s'\n", entry.c_str());
        }
    }
    if (fd >= 0) {
        close(fd);
    }
    tally & all = counted();
    all.hits += right;
    all.hit_bytes += right ? data.size() : 0;
    all.misses += !right;
    all.damaged += fd >= 0 && !right;
    tell();
    return right;
}

} // namespace rpc_cache
