#!/bin/sh
# SPDX-License-Identifier: GPL-3.0-or-later
# llama.cpp's build finds this as ccache, on this machine (scripts/compilers.sh) and on test hosts. Tests do not measure speed, and
# compiling takes most of their time. So it takes away most optimisations: what computes and reads models gets -O1, the rest -O0. Builds for
# tests have the option -O1 anyway, so that no release for users has the same id. With OPTIMISED=yes it takes nothing away. Versions of
# CMake have different places for the standard, and ccache looks at the order.
for source; do :; done
level=-O0 standard=
case $source in */ggml/* | */src/*) level=-O1 ;; esac
[ -z "${OPTIMISED:-}" ] || level=
for word; do
    shift
    case $word in
        -O[13]) set -- "$@" "${level:-$word}" ;;
        -std=*) standard=$word ;;
        *) set -- "$@" "$word" ;;
    esac
done
[ -z "$standard" ] || set -- "$@" "$standard"
[ ! -x /usr/bin/ccache ] || set -- /usr/bin/ccache "$@"
exec "$@"
