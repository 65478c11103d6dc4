# For scripts that run both sides of a program: waiting for the server, and reading the result. To
# be sourced. shellcheck shell=bash

listening() { # PORT [PID]: until a program listens at the port; fails if the process ends, or after four seconds
    local hex
    hex=$(printf ':%04X' "$1")
    for _ in $(seq 200); do
        if grep -q "$hex 0\{8,\}:0000 0A" /proc/net/tcp /proc/net/tcp6; then return 0; fi
        if [ -n "${2:-}" ] && ! kill -0 "$2" 2>/dev/null; then return 1; fi
        sleep 0.02
    done
    return 1
}

figure() { # FILE: the last result that a program prints, in a few words
    awk 'function column(name, number) {
            if (!match($0, name "\\[[^]]*")) return
            start = RSTART + length(name) + 1
            unit = substr($0, start, RSTART + RLENGTH - start)
            at = number
        }
        /usec\/iter/ { said = $(NF - 1) " usec" }
        /t_avg\[/ { column("t_avg", 3) } /t_typical\[/ { column("t_typical", 5) } /BW average\[/ { column("BW average", 4) }
        at && /^ *[0-9]+ +[0-9]+ / { said = $at " " unit }
        /^ *[0-9.]+ *$/ { said = $1 }
        /one way/ { said = $1 " usec" } /^Final:/ { said = $3 " usec, " $6 " MB/s" }
        END { print said }' "$1"
}
