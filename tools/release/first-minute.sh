#!/bin/sh
# Runs in a fresh root what a user runs in the first minute: first-minute.sh ROCE
#
# ROCE is the command, by its name in PATH or by its path. Stops at the first command that fails,
# and prints its output.
set -eu
roce=$1
work=$(mktemp -d)
cd "$work"
trap 'status=$?; [ $status = 0 ] || { echo "FAILED: $doing"; cat "$work/refused" "$work/server" "$work/client" 2>/dev/null; }; exit $status' EXIT

# pair NAME SERVER CLIENT: runs two programs on one host, the client once the server listens.
pair() {
    doing=$1
    : >"$work/server" >"$work/refused"
    sh -c "exec $roce run --quiet -- $2" >"$work/server" 2>&1 &
    server=$!
    tries=0
    # The server takes its address first: UDP port 4791 is in the kernel's table then.
    until grep -q ':12B7 ' /proc/net/udp || [ $tries -ge 50 ]; do
        tries=$((tries + 1))
        sleep 0.1
    done
    tries=0
    until sh -c "$roce run --quiet -- $3" >"$work/client" 2>&1; do
        cat "$work/client" >>"$work/refused"
        tries=$((tries + 1))
        [ $tries -lt 30 ] || return 1
        sleep 0.2
    done
    # rping's threads race at its end: one may fail because the other has closed the event channel.
    wait $server || [ "$doing" = rping ]
}

doing=version
$roce --version
doing=doctor
$roce doctor
pair ib_write_bw "ib_write_bw -n 1000" "ib_write_bw -n 1000 localhost"
grep -A1 '#bytes' "$work/client"
[ -z "${FIRST_TABLE:-}" ] || cat /proc/uptime >"$FIRST_TABLE"
pair ibv_rc_pingpong "ibv_rc_pingpong -g 0" "ibv_rc_pingpong -g 0 localhost"
tail -1 "$work/client"
pair rping "rping -s -a 127.0.0.1 -C 3" "rping -c -a 127.0.0.1 -C 3 -v | grep 'ping data: rdma-ping'"
[ "$(grep -c 'ping data' "$work/client")" = 3 ]
doing=demo
$roce demo --pcap demo.pcapng >demo.txt
tail -5 demo.txt
doing=decode
$roce decode demo.pcapng | tail -2
doing='flows --html'
$roce flows --html page.html demo.pcapng >flows.txt || [ $? = 1 ] # 1: it has findings
grep -qi '<html' page.html
doing='run --pcap'
$roce run --quiet --pcap it.pcapng -- ibv_devinfo >/dev/null
echo "first minute: all done"
