#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# Whose the folder of a build is, $BUILDS/$KEY: the run's that $BUILDS/$KEY/.owner names, until it leaves it or is gone.
# $1 is one of these, each of which only does something to what is this run's ($OWNER), or nobody's:
#   claim   the folder is there, and this run's, and says so if it "waited"; 75 and its owner if it still is another's
#           after $2 seconds
#   renew   the folder is still this run's, else it fails
#   leave   the folder stays, for the next run
#   remove  the folder is gone, and what dead runs have left goes too
#   sweep   what dead runs have left is gone
# Another run's that has not shown itself for $LAPSES seconds, and has no command of watched_command at work, is nobody's;
# it is swept away after a day.
set -u
umask 022
folder=$BUILDS/$KEY

is_mine() { [ -e "$1/.owner" ] && [ "$(cat "$1/.owner")" = "$OWNER" ]; }

is_free() {
    shown=$(stat -c %Y "$1/.owner" 2>/dev/null) || shown=0
    idle=$(($(date +%s) - shown))
    # A time to come is of before the clock was set.
    [ "$idle" -ge "$LAPSES" ] || [ "$idle" -lt -60 ] || return
    # On a full disk it could not be made.
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
}

remove() {
    is_mine "$folder" || return 0
    rm -rf "$folder" && sweep
}

sweep() {
    # A live run shows nothing while it waits for its other builders, or for its turn with this one, however long they take.
    LAPSES=86400
    for other in "$BUILDS"/*/; do
        other=${other%/}
        if [ -d "$other" ] && ! is_mine "$other" && is_free "$other"; then rm -rf "$other"; fi
    done
    # The lock goes last, with its folder, and with the prefix where nothing else is in it.
    [ "$(ls -A "$BUILDS")" != .lock ] || { rm "$BUILDS/.lock" && rmdir "$BUILDS" && rmdir "${BUILDS%/*}"; } 2>/dev/null || true
}

# One run at a time; 74 if the lock was removed while this one waited for it, or the folders while it made them.
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
