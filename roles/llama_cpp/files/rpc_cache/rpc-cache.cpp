// SPDX-License-Identifier: GPL-3.0-or-later
// Keeps the tensor cache of llama.cpp's RPC server in order, and puts tensors into it. Built with each release.
//
// An entry is a file whose name is the 64-bit FNV-1a digest of its bytes, in 16 hexadecimal digits (ggml-rpc.cpp: fnv_hash,
// set_tensor). The server deletes none. Without the patch rpc-safety it writes them in place, and serves whatever has the name of one.
//
//   rpc-cache tidy FOLDER STATE [--max SIZE] [--min-free SIZE] [--max-age DAYS]
//                               [--again SIZE] [--quiet SECONDS] [--settle SECONDS]
//   rpc-cache add FOLDER [--min-free SIZE] [--check yes]    each line of the input: OFFSET BYTES PATH
//
// A size is bytes, with K, M, G or T, or a part of the file system, such as 50%.
#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

static constexpr uint64_t FNV_START = 0xcbf29ce484222325ULL;
static constexpr uint64_t FNV_PRIME = 0x100000001b3ULL;
static constexpr size_t   LANES     = 4;
static constexpr size_t   BLOCK     = 256 * 1024;
static constexpr uint64_t SAVE_EVERY = uint64_t(4) << 30;  // bytes that are read between two writings of what is known
static constexpr time_t   IN_USE_S  = 600;  // an entry that was used so lately may be used again by the same load
static constexpr time_t   CHECK_AGAIN_S = 86400;  // a disk can damage what nobody has changed
static const char *       PART      = ".part-";

[[noreturn]] static void fail(const std::string & what, const std::string & remedy = "") {
    const std::string reason = errno ? std::string(": ") + strerror(errno) : "";
    fprintf(stderr, "%s%s%s%s\n", what.c_str(), reason.c_str(), remedy.empty() ? "" : "; ", remedy.c_str());
    exit(1);
}

//
// Hashing
//

// A part of an open file, and the digest of what was read of it so far.
struct stream {
    int      fd;
    uint64_t at;
    uint64_t left;
    uint64_t hash  = FNV_START;
    bool     whole = true;  // it had all these bytes
};

// Each byte needs the digest of all before it, so that a core mostly waits; it can do so for several files at once.
static void hash_lanes(const uint8_t * const data[LANES], uint64_t hash[LANES], size_t size) {
    uint64_t a = hash[0], b = hash[1], c = hash[2], d = hash[3];
    for (size_t i = 0; i < size; i++) {
        a = (a ^ data[0][i]) * FNV_PRIME;
        b = (b ^ data[1][i]) * FNV_PRIME;
        c = (c ^ data[2][i]) * FNV_PRIME;
        d = (d ^ data[3][i]) * FNV_PRIME;
    }
    hash[0] = a, hash[1] = b, hash[2] = c, hash[3] = d;
}

static bool read_all(int fd, uint8_t * to, size_t size, uint64_t at) {
    while (size > 0) {
        const ssize_t got = pread(fd, to, size, off_t(at));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return false;
        }
        to += got, at += uint64_t(got), size -= size_t(got);
    }
    return true;
}

// Digests all of them, as many at a time as there are lanes.
static void hash_streams(std::vector<stream> & all) {
    static std::vector<uint8_t> room(LANES * BLOCK);
    size_t   next = 0;
    stream * lane[LANES] = {};
    size_t   ready[LANES] = {}, used[LANES] = {};
    while (true) {
        size_t least = 0;
        for (size_t i = 0; i < LANES; i++) {
            while (used[i] == ready[i]) {
                if (lane[i] && lane[i]->whole && lane[i]->left > 0) {
                    ready[i] = size_t(std::min<uint64_t>(lane[i]->left, BLOCK)), used[i] = 0;
                    lane[i]->whole = read_all(lane[i]->fd, &room[i * BLOCK], ready[i], lane[i]->at);
                    lane[i]->at += ready[i], lane[i]->left -= ready[i];
                    if (!lane[i]->whole) {
                        used[i] = ready[i];
                    }
                } else if (next < all.size()) {
                    lane[i] = &all[next++];
                } else {
                    lane[i] = nullptr;
                    break;
                }
            }
            if (lane[i]) {
                const size_t more = ready[i] - used[i];
                least             = least ? std::min(least, more) : more;
            }
        }
        if (least == 0) {
            return;
        }
        const uint8_t * data[LANES];
        uint64_t        hash[LANES];
        for (size_t i = 0; i < LANES; i++) {
            // A lane without a file goes over what is there, for nothing.
            data[i] = &room[i * BLOCK + (lane[i] ? used[i] : 0)];
            hash[i] = lane[i] ? lane[i]->hash : 0;
        }
        hash_lanes(data, hash, least);
        for (size_t i = 0; i < LANES; i++) {
            if (lane[i]) {
                lane[i]->hash = hash[i];
                used[i] += least;
            }
        }
    }
}

//
// Entries
//

struct entry {
    std::string name;
    uint64_t    size;
    int64_t     changed_ns;
    uint64_t    inode;
    time_t      used;
    time_t      checked;  // when it was last read and found to be what its name says
};

// A time that is still to come is of a clock that was set back since, and says nothing: it counts as long ago. Not so by a few
// minutes, as a clock is set while entries are in use.
static time_t past(time_t when) {
    return when > time(nullptr) + IN_USE_S ? 0 : when;
}

// What a file is known by to be the one that was looked at.
static bool same(const entry & a, const entry & b) {
    return a.size == b.size && a.changed_ns == b.changed_ns && a.inode == b.inode;
}

static entry described(const std::string & name, const struct stat & found) {
    const int64_t changed = int64_t(found.st_mtim.tv_sec) * 1000000000 + found.st_mtim.tv_nsec;
    // As it is mounted by default, a disk keeps when a file was read to the day (relatime). Nothing better is needed here.
    const time_t used = std::max(past(found.st_mtime), past(found.st_atime));
    return { name, uint64_t(found.st_size), changed, uint64_t(found.st_ino), used, 0 };
}

static std::string name_of(uint64_t hash) {
    char text[17];
    snprintf(text, sizeof(text), "%016" PRIx64, hash);
    return text;
}

static bool is_name(const std::string & name) {
    return name.size() == 16 && name.find_first_not_of("0123456789abcdef") == std::string::npos;
}

// Not by the time of this reading, which says nothing of a load. Who is not the owner is not allowed that.
static int open_entry(int folder, const std::string & name) {
    int fd = openat(folder, name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOATIME);
    if (fd < 0 && errno == EPERM) {
        fd = openat(folder, name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    }
    return fd;
}

// The entries of the folder, and what a run that was killed has left there goes.
static std::vector<entry> list(int folder) {
    std::vector<entry> found;
    const int          copy   = dup(folder);
    DIR *              stream = copy < 0 ? nullptr : fdopendir(copy);
    if (!stream) {
        fail("the cache folder cannot be listed");
    }
    rewinddir(stream);
    while (const dirent * item = readdir(stream)) {
        const std::string name = item->d_name;
        struct stat       about;
        if (fstatat(folder, item->d_name, &about, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(about.st_mode)) {
            continue;
        }
        if (is_name(name)) {
            found.push_back(described(name, about));
        } else if (name.rfind(PART, 0) == 0 && time(nullptr) - past(about.st_mtime) > 3600) {
            unlinkat(folder, item->d_name, 0);
        }
    }
    closedir(stream);
    std::sort(found.begin(), found.end(), [](const entry & a, const entry & b) {
        return std::make_pair(a.used, a.name) < std::make_pair(b.used, b.name);
    });
    return found;
}

struct disk {
    uint64_t size, free;
    bool     noatime;
};

static disk disk_of(int folder) {
    struct statvfs found;
    if (fstatvfs(folder, &found) != 0) {
        fail("the file system of the cache cannot be asked");
    }
    return { uint64_t(found.f_blocks) * found.f_frsize, uint64_t(found.f_bavail) * found.f_frsize,
             (found.f_flag & ST_NOATIME) != 0 };
}

// A size as it is given; an empty one is `none`.
static uint64_t bytes(const std::string & text, uint64_t whole, uint64_t none) {
    if (text.empty()) {
        return none;
    }
    char *         end    = nullptr;
    const uint64_t number = strtoull(text.c_str(), &end, 10);
    const char *   units  = "KMGT";
    const char *   unit   = *end ? strchr(units, *end) : nullptr;
    errno                 = 0;
    if (text[0] < '0' || text[0] > '9' || (*end && end[1]) || (*end && *end != '%' && !unit)) {
        fail(text + " is no size", "give bytes with or without K, M, G or T, or a part of the file system, such as 50%");
    }
    return *end == '%' ? uint64_t(double(whole) * double(number) / 100) : unit ? number << (10 * (unit - units + 1)) : number;
}

//
// tidy
//

// Which entries were found to be what their names say: what does not change need not be read again.
static std::map<std::string, entry> read_known(int state) {
    std::map<std::string, entry> known;
    const int                    fd   = openat(state, "checked", O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    FILE *                       file = fd < 0 ? nullptr : fdopen(fd, "r");
    if (!file) {
        return known;
    }
    char line[160], name[17];
    while (fgets(line, sizeof(line), file)) {
        entry   one{};
        int64_t checked = 0;  // as programs of earlier releases leave it
        if (sscanf(line, "%16s %" SCNu64 " %" SCNd64 " %" SCNu64 " %" SCNd64, name, &one.size, &one.changed_ns, &one.inode,
                   &checked) < 4) {
            break;
        }
        one.name = name, one.checked = past(time_t(checked));
        known[one.name] = one;
    }
    fclose(file);
    return known;
}

// A number of what the last run has said of itself.
static uint64_t said_before(int state, const char * key) {
    char          text[1024] = {};
    const int     fd         = openat(state, "status.json", O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    const ssize_t got        = fd < 0 ? 0 : read(fd, text, sizeof(text) - 1);
    if (fd >= 0) {
        close(fd);
    }
    const char * found = got > 0 ? strstr(text, (std::string("\"") + key + "\": ").c_str()) : nullptr;
    return found ? strtoull(found + strlen(key) + 4, nullptr, 10) : 0;
}

// Whole or not at all. That it cannot be written is no reason not to tidy up.
static void write_file(int state, const char * name, const std::string & text) {
    const std::string part = std::string(name) + ".new";
    const int         fd   = openat(state, part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644);
    const bool        done = fd >= 0 && write(fd, text.data(), text.size()) == ssize_t(text.size());
    if (fd < 0 || close(fd) != 0 || !done || renameat(state, part.c_str(), state, name) != 0) {
        fprintf(stderr, "%s cannot be written, so that the next run reads all entries again: %s\n", name, strerror(errno));
    }
}

static void write_known(int state, const std::map<std::string, entry> & known) {
    std::string text;
    for (const auto & item : known) {
        const entry & one = item.second;
        char          line[160];
        snprintf(line, sizeof(line), "%s %" PRIu64 " %" PRId64 " %" PRIu64 " %" PRId64 "\n", one.name.c_str(), one.size,
                 one.changed_ns, one.inode, int64_t(one.checked));
        text += line;
    }
    write_file(state, "checked", text);
}

// Notices that somebody else opens or makes entries, which a load does all the time, from the disk or from the network.
class watch {
  public:
    explicit watch(const std::string & folder) : fd(inotify_init1(IN_NONBLOCK | IN_CLOEXEC)) {
        if (fd >= 0 && inotify_add_watch(fd, folder.c_str(), IN_OPEN | IN_CREATE | IN_MODIFY | IN_MOVED_TO) < 0) {
            close(fd);
            fd = -1;
        }
    }

    // Whether nobody did so in these seconds. Who cannot watch does not know it.
    bool quiet(int seconds) {
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
        do {
            look();
            if (!others.empty()) {
                return false;
            }
            pollfd one{ fd, POLLIN, 0 };
            poll(&one, 1, seconds > 0 ? 200 : 0);
        } while (std::chrono::steady_clock::now() < end);
        return look();
    }

    // Whether nobody else has opened anything so far.
    bool look() {
        alignas(inotify_event) char events[16384];
        ssize_t                     size = 0;
        while (fd >= 0 && (size = read(fd, events, sizeof(events))) > 0) {
            for (ssize_t at = 0; at < size;) {
                const auto * event = reinterpret_cast<const inotify_event *>(events + at);
                const std::string name = event->len ? event->name : "";
                if (event->mask & IN_Q_OVERFLOW || (is_name(name) && !own.count(name))) {
                    others.insert(name);
                }
                at += ssize_t(sizeof(inotify_event) + event->len);
            }
        }
        return fd >= 0 && others.empty();
    }

    int                   fd;
    std::set<std::string> own;     // those that this program opens
    std::set<std::string> others;  // those that somebody else has opened
};

// Removes an entry that nobody has open, and that still is what it was. As long as a lease for writing is held (fcntl(2),
// F_SETLEASE), nobody else has the file open, and who opens it waits for the end of it; then it is gone, or still theirs.
static bool remove_entry(int folder, const entry & one, bool unused_since) {
    const int fd = open_entry(folder, one.name);
    if (fd < 0) {
        return false;
    }
    struct stat about;
    bool        may = fstat(fd, &about) == 0 && S_ISREG(about.st_mode) && same(described(one.name, about), one);
    may = may && (!unused_since || described(one.name, about).used == one.used);
    // Some file systems have no leases: there, nothing but the watch tells.
    may = may && (fcntl(fd, F_SETLEASE, F_WRLCK) == 0 || (errno != EAGAIN && errno != EBUSY));
    const bool removed = may && unlinkat(folder, one.name.c_str(), 0) == 0;
    close(fd);
    return removed;
}

struct options {
    std::string max, min_free, max_age, check, again = "1G";
    int         quiet  = 5;
    int         settle = 60;
};

static int tidy(const std::string & path, const std::string & state_path, const options & wanted) {
    // Whoever opens a file under a lease makes a signal, which would end this program.
    signal(SIGIO, SIG_IGN);
    const int state = open(state_path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (state < 0) {
        fail(state_path + " cannot be opened");
    }
    const int folder = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder < 0 && errno == ENOENT) {
        return 0;  // no client has sent anything yet
    }
    if (folder < 0) {
        fail("the cache folder " + path + " cannot be opened");
    }
    const time_t                 now     = time(nullptr);
    const disk                   room    = disk_of(folder);
    const uint64_t               max     = bytes(wanted.max, room.size, UINT64_MAX);
    const uint64_t               min     = bytes(wanted.min_free, room.size, 0);
    const uint64_t               most    = bytes(wanted.again, 0, 0);
    const time_t                 max_age = wanted.max_age.empty() ? 0 : time_t(bytes(wanted.max_age, 0, 0)) * 86400;
    std::vector<entry>           entries = list(folder);
    std::map<std::string, entry> before  = read_known(state), known;

    // Which ones are not what their names say
    std::vector<entry> unknown, trusted, wrong, sound;
    for (entry & one : entries) {
        const auto found = before.find(one.name);
        if (found != before.end() && same(found->second, one)) {
            one.checked = found->second.checked;
            trusted.push_back(one);
        } else if (now - past(time_t(one.changed_ns / 1000000000)) < wanted.settle) {
            sound.push_back(one);  // it may be on its way; the next run looks at it
        } else {
            unknown.push_back(one);
        }
    }
    // Of the others some are read again, first those whose reading is the longest ago; one alone may be larger than that.
    std::sort(trusted.begin(), trusted.end(), [](const entry & a, const entry & b) { return a.checked < b.checked; });
    uint64_t again = 0;
    for (const entry & one : trusted) {
        if (now - one.checked > CHECK_AGAIN_S && (again == 0 || again + one.size <= most)) {
            unknown.push_back(one);
            again += one.size;
        } else {
            known[one.name] = one;
            sound.push_back(one);
        }
    }
    uint64_t checked_bytes = 0, unsaved = 0;
    for (size_t first = 0; first < unknown.size(); first += LANES) {
        std::vector<stream> streams;
        std::vector<entry>  these;
        for (size_t i = first; i < std::min(first + LANES, unknown.size()); i++) {
            const int fd = open_entry(folder, unknown[i].name);
            if (fd >= 0) {
                streams.push_back({ fd, 0, unknown[i].size });
                these.push_back(unknown[i]);
            }
        }
        hash_streams(streams);
        for (size_t i = 0; i < streams.size(); i++) {
            struct stat about;
            const bool still = fstat(streams[i].fd, &about) == 0 && same(described(these[i].name, about), these[i]);
            close(streams[i].fd);
            checked_bytes += these[i].size, unsaved += these[i].size;
            if (still && (!streams[i].whole || name_of(streams[i].hash) != these[i].name)) {
                wrong.push_back(these[i]);
                continue;
            }
            sound.push_back(these[i]);
            if (still) {
                these[i].checked      = time(nullptr);
                known[these[i].name] = these[i];
            }
        }
        if (unsaved >= SAVE_EVERY) {
            write_known(state, known);
            unsaved = 0;
        }
    }

    // Which ones are too many
    std::sort(sound.begin(), sound.end(), [](const entry & a, const entry & b) {
        return std::make_pair(a.used, a.name) < std::make_pair(b.used, b.name);
    });
    uint64_t sound_bytes = 0, wrong_bytes = 0;
    for (const entry & one : sound) {
        sound_bytes += one.size;
    }
    for (const entry & one : wrong) {
        wrong_bytes += one.size;
    }
    const uint64_t                      free = disk_of(folder).free;
    std::vector<std::pair<entry, bool>> surplus;  // and whether the disk needs the room
    const auto choose = [&](uint64_t going) {
        uint64_t total = sound_bytes;
        surplus.clear();
        for (const entry & one : sound) {
            const bool lacking = free + going < min;
            if (lacking || total > max || (max_age > 0 && now - one.used > max_age)) {
                surplus.push_back({ one, lacking });
                total -= one.size, going += one.size;
            }
        }
    };
    choose(wrong_bytes);

    // They go when nobody loads anything. (Upstream ends when an entry is gone between its look for it and its opening it.)
    // A full disk is worse than that: for it, entries go that were long not used.
    uint64_t removed_bytes = 0, corrupted = 0, evicted = 0, kept = 0;
    if (!wrong.empty() || !surplus.empty()) {
        watch others(path);
        others.quiet(wanted.quiet);
        const auto remove = [&](const entry & one, bool urgent, bool sound) {
            others.own.insert(one.name);
            const bool may  = others.look() || (urgent && !others.others.count(one.name) && now - one.used > IN_USE_S);
            // To read all that is new can take hours: what was used meanwhile is none of the longest unused.
            const bool gone = may && remove_entry(folder, one, sound);
            kept += !gone;
            removed_bytes += gone ? one.size : 0;
            if (gone) {
                known.erase(one.name);
            }
            return gone;
        };
        for (const entry & one : wrong) {
            corrupted += remove(one, false, false);
        }
        choose(removed_bytes);  // those that are in use make no room
        for (const auto & item : surplus) {
            evicted += remove(item.first, item.second, true);
        }
    }
    write_known(state, known);

    uint64_t left = 0, left_bytes = 0;
    for (const entry & one : list(folder)) {
        left++, left_bytes += one.size;
    }
    const disk after = disk_of(folder);
    char       text[640];
    snprintf(text, sizeof(text),
             "{\"time\": %lld, \"entries\": %" PRIu64 ", \"bytes\": %" PRIu64 ", \"max_bytes\": %" PRIu64
             ", \"free_bytes\": %" PRIu64 ", \"min_free_bytes\": %" PRIu64 ", \"checked_bytes\": %" PRIu64
             ", \"kept\": %" PRIu64 ", \"corrupted\": %" PRIu64 ", \"evicted\": %" PRIu64 "}\n",
             (long long) time(nullptr), left, left_bytes, max == UINT64_MAX ? 0 : max, after.free, min, checked_bytes, kept,
             corrupted + said_before(state, "corrupted"), evicted + said_before(state, "evicted"));
    write_file(state, "status.json", text);
    if (corrupted || evicted || kept) {
        printf("%" PRIu64 " corrupted and %" PRIu64 " surplus entries removed (%.1f MiB); %" PRIu64
               " in use and left for the next time; %" PRIu64 " entries with %.1f MiB remain%s\n",
               corrupted, evicted, double(removed_bytes) / 1048576, kept, left, double(left_bytes) / 1048576,
               room.noatime ? "; the disk does not keep when they were read (noatime), so the oldest went first" : "");
    }
    return 0;
}

//
// add
//

struct tensor {
    std::string path;
    int         fd;
    uint64_t    offset, size;
};

static std::vector<tensor> read_wanted() {
    std::vector<tensor>        wanted;
    std::map<std::string, int> files;
    char                       line[8192];
    while (fgets(line, sizeof(line), stdin)) {
        uint64_t offset = 0, size = 0;
        int      at = 0;
        line[strcspn(line, "\n")] = 0;
        errno = 0;
        if (sscanf(line, "%" SCNu64 " %" SCNu64 " %n", &offset, &size, &at) != 2 || at == 0 || !line[at]) {
            fail(std::string("the input has a line that is none: ") + line);
        }
        const std::string path = line + at;
        if (!files.count(path)) {
            files[path] = open(path.c_str(), O_RDONLY | O_CLOEXEC);
            if (files[path] < 0) {
                fail(path + " cannot be read");
            }
        }
        wanted.push_back({ path, files[path], offset, size });
    }
    return wanted;
}

// Copies a tensor beside the entries and gives it its name when it is whole.
static void copy(int folder, const tensor & from, const std::string & name) {
    static std::vector<uint8_t> block(1 << 20);
    const std::string           part = PART + name + "-" + std::to_string(getpid());
    const int out = openat(folder, part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (out < 0) {
        fail("nothing can be written to the cache folder");
    }
    const auto give_up = [&](const std::string & what, const std::string & remedy) {
        const int reason = errno;
        unlinkat(folder, part.c_str(), 0);
        errno = reason;
        fail(what, remedy);
    };
    // Digested once more: what is written is what has the name, also when the file changes meanwhile.
    uint64_t hash = FNV_START;
    for (uint64_t done = 0; done < from.size;) {
        const size_t size = size_t(std::min<uint64_t>(block.size(), from.size - done));
        errno             = 0;
        if (!read_all(from.fd, block.data(), size, from.offset + done)) {
            give_up(from.path + " ends before its last tensor", "bring it whole, and run this again");
        }
        for (size_t i = 0; i < size; i++) {
            hash = (hash ^ block[i]) * FNV_PRIME;
        }
        for (size_t written = 0; written < size;) {
            const ssize_t more = write(out, &block[written], size - written);
            if (more < 0 && errno != EINTR) {
                give_up("the cache cannot take more", "make room, and run this again");
            }
            written += more > 0 ? size_t(more) : 0;
        }
        done += size;
    }
    errno = 0;
    if (name_of(hash) != name) {
        give_up(from.path + " was changed while it was read", "run this again");
    }
    // A worker with the patch rpc-safety need not digest it once more: see ggml-rpc-cache.h, which has the same formula.
    const timespec times[2] = { { 0, UTIME_OMIT }, { time(nullptr), long((hash ^ from.size * 0x9e3779b97f4a7c15ULL) % 1000000000) } };
    futimens(out, times);
    if (fdatasync(out) != 0 || close(out) != 0 || renameat(folder, part.c_str(), folder, name.c_str()) != 0) {
        give_up("the cache cannot take more", "make room, and run this again");
    }
}

enum class found_as { absent, damaged, sound };

// What the cache has of these names. Of each that has the right size the bytes are read: its name and size say nothing of them.
static std::vector<found_as> look_at(int folder, const std::vector<std::string> & names, const std::vector<uint64_t> & sizes) {
    std::vector<found_as> found(names.size(), found_as::absent);
    std::vector<stream>   streams;
    std::vector<size_t>   of;
    for (size_t i = 0; i < names.size(); i++) {
        struct stat about;
        const int   fd = open_entry(folder, names[i]);
        if (fd >= 0 && fstat(fd, &about) == 0 && S_ISREG(about.st_mode)) {
            found[i] = found_as::damaged;
            if (uint64_t(about.st_size) == sizes[i]) {
                streams.push_back({ fd, 0, sizes[i] });
                of.push_back(i);
                continue;
            }
        }
        if (fd >= 0) {
            close(fd);
        }
    }
    hash_streams(streams);
    for (size_t i = 0; i < streams.size(); i++) {
        close(streams[i].fd);
        if (streams[i].whole && name_of(streams[i].hash) == names[of[i]]) {
            found[of[i]] = found_as::sound;
        }
    }
    return found;
}

static int add(const std::string & path, const options & wanted) {
    // Read as who started it, written as who owns the cache.
    const std::vector<tensor> tensors = read_wanted();
    const int                 folder  = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct stat               about;
    if (folder < 0 || fstat(folder, &about) != 0) {
        fail("the cache folder " + path + " cannot be opened");
    }
    if (geteuid() == 0 && about.st_uid != 0 &&
        (setgroups(0, nullptr) != 0 || setgid(about.st_gid) != 0 || setuid(about.st_uid) != 0)) {
        fail("the owner of the cache folder cannot be taken on");
    }
    umask(0077);
    const uint64_t        min  = bytes(wanted.min_free, disk_of(folder).size, 0);
    const bool            only = !wanted.check.empty();
    std::set<std::string> right;  // those that were read or written here: two tensors may have the same bytes
    for (size_t first = 0; first < tensors.size(); first += LANES) {
        std::vector<stream> streams;
        for (size_t i = first; i < std::min(first + LANES, tensors.size()); i++) {
            streams.push_back({ tensors[i].fd, tensors[i].offset, tensors[i].size });
        }
        hash_streams(streams);
        std::vector<std::string> names;
        std::vector<uint64_t>    sizes;
        for (size_t i = 0; i < streams.size(); i++) {
            const tensor & one = tensors[first + i];
            errno              = 0;
            if (!streams[i].whole) {
                fail(one.path + " ends before its last tensor", "bring it whole, and run this again");
            }
            names.push_back(name_of(streams[i].hash));
            sizes.push_back(one.size);
        }
        const std::vector<found_as> found = look_at(folder, names, sizes);
        for (size_t i = 0; i < names.size(); i++) {
            const tensor &      one   = tensors[first + i];
            const std::string & name  = names[i];
            const bool          there = found[i] == found_as::sound || right.count(name);
            const char *        done  = there ? "there" : only ? "missing" : "added";
            if (there && !only) {
                // It is about to be used, so it is not to be the next to go; when it was written stays as it was.
                const timespec times[2] = { { 0, UTIME_NOW }, { 0, UTIME_OMIT } };
                utimensat(folder, name.c_str(), times, AT_SYMLINK_NOFOLLOW);
            } else if (!only) {
                errno = 0;
                if (disk_of(folder).free < min + one.size) {
                    fail("the disk of the cache would have less free than it is to keep", "make room, and run this again");
                }
                copy(folder, one, name);
                done = found[i] == found_as::damaged ? "replaced" : done;
            }
            if (there || !only) {
                right.insert(name);
            }
            printf("%s %" PRIu64 " %s\n", name.c_str(), one.size, done);
            fflush(stdout);
        }
    }
    return 0;
}

int main(int argc, char ** argv) {
    options                  wanted;
    std::vector<std::string> given(argv + 1, argv + argc), plain;
    const std::map<std::string, std::string *> texts = {
        { "--max", &wanted.max }, { "--min-free", &wanted.min_free }, { "--max-age", &wanted.max_age },
        { "--check", &wanted.check }, { "--again", &wanted.again }
    };
    const std::map<std::string, int *> numbers = { { "--quiet", &wanted.quiet }, { "--settle", &wanted.settle } };
    bool sound = true;
    for (size_t i = 0; i < given.size(); i++) {
        if (given[i].rfind("--", 0) != 0) {
            plain.push_back(given[i]);
        } else if (i + 1 < given.size() && texts.count(given[i])) {
            *texts.at(given[i]) = given[i + 1], i++;
        } else if (i + 1 < given.size() && numbers.count(given[i])) {
            *numbers.at(given[i]) = atoi(given[i + 1].c_str()), i++;
        } else {
            sound = false;
        }
    }
    if (sound && plain.size() == 3 && plain[0] == "tidy") {
        return tidy(plain[1], plain[2], wanted);
    }
    if (sound && plain.size() == 2 && plain[0] == "add") {
        return add(plain[1], wanted);
    }
    fprintf(stderr, "usage: rpc-cache tidy FOLDER STATE [--max SIZE] [--min-free SIZE] [--max-age DAYS]\n"
                    "       rpc-cache add FOLDER [--min-free SIZE] [--check yes]\n");
    return 2;
}
