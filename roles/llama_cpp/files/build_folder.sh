#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# Keeps two runs from building in one folder, $BUILDS/$KEY. The file .owner in the folder names the run that owns it, until that
# run leaves the folder or is dead.
# $1 is one of these commands. Each changes only folders that this run ($OWNER) or no live run owns:
#   claim   create the folder if needed, and own it; print "waited" if another run had it first. If another run still owns it after
#           $2 seconds, print that run and exit with 75
#   renew   renew this run's claim, or fail if the folder is not this run's any more
#   leave   give up the claim, but keep the folder for the next run
#   remove  delete the folder, and the folders that dead runs have left
#   sweep   delete the folders that dead runs have left
# A run is dead if watched_command runs no command of it and it has not renewed its claim for $LAPSES seconds. sweep waits a day.
set -u
umask 022
folder=$BUILDS/$KEY

is_mine() { [ -e "$1/.owner" ] && [ "$(cat "$1/.owner")" = "$OWNER" ]; }

is_free() {
    shown=$(stat -c %Y "$1/.owner" 2>/dev/null) || shown=0
    idle=$(($(date +%s) - shown))
    # A time in the future is from before the clock was set.
    [ "$idle" -ge "$LAPSES" ] || [ "$idle" -lt -60 ] || return
    # flock would create the file, which fails on a full disk.
    [ ! -e "$1/.watched_command.lock" ] || flock --nonblock "$1/.watched_command.lock" true
}

claim() {
    mkdir -p "$folder" || return
    if ! is_mine "$folder" && ! is_free "$folder"; then
        cat "$folder/.owner" 2>/dev/null
        return 75
    fi
    { printf '%s\n' "$OWNER" >"$folder/.owner.new" && mv "$folder/.owner.new" "$folder/.owner"; } 2>/dev/null && return
    echo "the disk that holds $folder is full or cannot be written to: make room there and run this again" >&2
    return 1
}

renew() {
    if is_mine "$folder"; then touch "$folder/.owner"; else
        echo "another run has taken over $folder, since this one had not shown itself for $LAPSES s: run this again" >&2
        return 1
    fi
}

leave() {
    ! is_mine "$folder" || rm "$folder/.owner"
    tidy
}

remove() {
    is_mine "$folder" || return 0
    rm -rf "$folder" && sweep
}

sweep() {
    # A live run does not renew its claim while it waits for its other builders or for its turn with this one, which may take long.
    LAPSES=86400
    for other in "$BUILDS"/*/; do
        other=${other%/}
        if [ -d "$other" ] && ! is_mine "$other" && is_free "$other"; then rm -rf "$other"; fi
    done
    tidy
}

# If only the lock is left, remove it with its folder, and the prefix too if that is empty.
tidy() {
    [ "$(ls -A "$BUILDS")" != .lock ] || { rm "$BUILDS/.lock" && rmdir "$BUILDS" && rmdir "${BUILDS%/*}"; } 2>/dev/null || true
}

# One run at a time. The exit status is 74 if this run does not get the lock within 60 s, if the lock was removed while this run
# waited for it, or if the folders were removed while this run created them.
locked() (
    mkdir -p "$BUILDS" 2>/dev/null || mkdir -p "$BUILDS" || exit 1
    # Without `command`, some shells would end here with 1.
    command exec 9>>"$BUILDS/.lock" || exit 74
    flock --timeout 60 9 && [ "$BUILDS/.lock" -ef /proc/self/fd/9 ] || exit 74
    case $1 in
        claim) claim ;;
        renew) renew ;;
        leave) leave ;;
        remove) remove ;;
        sweep) sweep ;;
    esac
)

end=$(($(date +%s) + ${2:-0})) tries=0 waited=
while :; do
    said=$(locked "$1")
    code=$?
    case $code in
        75)
            waited=waited
            [ "$(date +%s)" -lt "$end" ] || break
            ;;
        74) [ $((tries += 1)) -lt 10 ] || break ;;
        *) break ;;
    esac
    sleep 1
done
[ "$code" != 0 ] || said=$waited
[ -z "$said" ] || printf '%s\n' "$said"
exit "$code"
