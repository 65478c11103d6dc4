#!/usr/bin/env python3
"""An independent model of the congestion controllers, in exact integers and with eager timers.

Writes testdata/congestion/*.txt: schedules of events, and what a controller must say after each.
`cargo test --test congestion model` holds the crate's controllers against them, to the bit.
It shares no code with the crate: it was written from the rules in docs/congestion.md.
"""

import math
import os
import random
import sys

G = 10**9
US = 1000


class Paper:
    """DCQCN as in its paper. Every timer is an event of its own."""

    def __init__(self, line, _packet, g=4, alpha=1024, k=55, t=55, b=10_000_000, f=5, ai=None,
                 hai=None, floor=None):
        self.line, self.g, self.alpha0, self.k, self.t = line, g, alpha << 22, k * US, t * US
        self.b, self.f = b, f
        self.ai = max(ai * 10**6 if ai is not None else line // 1000, (line >> 20) + 1)
        self.hai = hai * 10**6 if hai is not None else 5 * self.ai
        self.floor = floor * 10**6 if floor is not None else line // 400
        self.on = False

    def step(self):
        most, least = max(self.ts, self.bs), min(self.ts, self.bs)
        if most < self.f:
            pass
        elif least > self.f:
            self.rt += (least - self.f) * self.hai
        else:
            self.rt += self.ai
        self.rt = min(self.rt, self.line)
        self.rc = (self.rc + self.rt + 1) // 2
        if self.rc == self.rt == self.line:
            self.on = False

    def run(self, now):
        while self.on and min(self.next_alpha, self.next_step) <= now:
            if self.next_alpha <= self.next_step:
                self.alpha -= self.alpha * self.g // 1024
                self.next_alpha += self.k
            else:
                self.ts += 1
                self.next_step += self.t
                self.step()

    def sent(self, now, size):
        self.run(now)
        if self.on:
            self.bytes += size
        while self.on and self.bytes >= self.b:
            self.bytes -= self.b
            self.bs += 1
            self.step()

    def cnp(self, now):
        self.run(now)
        if not self.on:
            self.on, self.rc, self.alpha = True, self.line, self.alpha0
        self.rt = self.rc
        self.rc = max(self.rc - self.rc * self.alpha // 2**33, self.floor)
        self.alpha = self.alpha - self.alpha * self.g // 1024 + 2**32 // 1024 * self.g
        self.ts = self.bs = self.bytes = 0
        self.next_alpha, self.next_step = now + self.k, now + self.t

    def says(self, now):
        self.run(now)
        if not self.on:
            return self.line, None, None, None
        return self.rc, None, self.rt, self.alpha * 10**6 >> 32


class Nvidia:
    """DCQCN as NVIDIA documents it."""

    def __init__(self, line, _packet, clamp=0, ati=1, time=300, byte=32767, thr=1, ai=5, hai=50,
                 dec=50, floor=1, first=0, g=1019, rtt=1, monitor=4, alpha=1023, gd=11):
        self.line, self.clamp, self.ati, self.time = line, clamp, ati, time * US
        self.byte, self.thr, self.dec, self.floor = byte * 64, thr, dec, floor * 10**6
        least = (line >> 20) + 1
        self.ai, self.hai = max(ai * 10**6, least), max(hai * 10**6, least)
        self.first, self.g, self.rtt, self.monitor = first, g, rtt * US, monitor * US
        self.alpha0, self.gd, self.on = alpha, gd, False

    def step(self):
        most, least = max(self.ts, self.bs), min(self.ts, self.bs)
        if least > self.thr:
            self.rt += self.hai
        elif most >= self.thr:
            self.rt += self.ai
        self.rt = min(self.rt, self.line)
        self.rc = (self.rc + self.rt + 1) // 2
        if self.rc == self.rt == self.line and not self.cut_flag:
            self.on = False

    def run(self, now):
        while self.on:
            # α first, then the end of a monitor period, then the increase timer.
            due = min((self.next_alpha, 0), (self.next_end, 1), (self.next_step, 2))
            if due[0] > now:
                return
            if due[1] == 0:
                self.alpha = self.alpha * self.g // 1024
                if self.alpha_flag:
                    self.alpha = min(self.alpha + 1024 - self.g, 1023)
                self.alpha_flag = False
                self.next_alpha += self.rtt
            elif due[1] == 1:
                self.next_end += self.monitor
                if self.cut_flag:
                    self.cut_flag = False
                    if self.clamp or self.bs or (self.ati and self.ts):
                        self.rt = self.rc
                    by_alpha = self.rc * self.alpha >> self.gd
                    most = self.rc * (100 - self.dec) // 100
                    self.rc = max(self.rc - min(by_alpha, most), self.floor)
                    self.ts = self.bs = self.bytes = 0
                    self.next_step = due[0] + self.time
            else:
                self.next_step += self.time
                self.step()
                self.ts += 1

    def sent(self, now, size):
        self.run(now)
        if self.on:
            self.bytes += size
        while self.on and self.bytes >= self.byte:
            self.bytes -= self.byte
            self.step()
            self.bs += 1

    def cnp(self, now):
        self.run(now)
        if self.on:
            self.alpha_flag = self.cut_flag = True
            return
        self.on = True
        rate = self.first * 10**6 if self.first else self.line * 85 // 100
        self.rc = self.rt = min(max(rate, self.floor), self.line)
        self.alpha, self.alpha_flag, self.cut_flag = self.alpha0, False, False
        self.ts = self.bs = self.bytes = 0
        self.next_alpha, self.next_end = now + self.rtt, now + self.monitor
        self.next_step = now + self.time

    def says(self, now):
        self.run(now)
        if not self.on:
            return self.line, None, None, None
        return self.rc, None, self.rt, self.alpha * 10**6 // 1024


class Timely:
    def __init__(self, line, _packet, low=50, high=500, base=20, ai=None, weight=896, beta=819,
                 hyper=5, floor=None):
        self.line, self.low, self.high, self.base = line, low * US, high * US, base * US
        self.ai = ai * 10**6 if ai is not None else line // 1000
        self.weight, self.beta, self.hyper = weight, beta, hyper
        self.floor = floor * 10**6 if floor is not None else line // 1000
        self.rate, self.last, self.diff, self.ups = line, None, 0, 0

    def up(self):
        self.ups += 1
        self.rate = min(self.rate + self.ai * (5 if self.ups >= self.hyper else 1), self.line)

    def down(self, numerator, denominator):
        share = min(self.beta * numerator // denominator, self.beta)
        self.rate = max(self.rate - self.rate * share // 1024, self.floor)
        self.ups = 0

    def ack(self, _now, _packets, _size, _left, rtt, _hops):
        if rtt is None:
            return
        last, self.last = self.last, rtt
        if last is None:
            return
        self.diff = ((1024 - self.weight) * self.diff + self.weight * (rtt - last)) // 1024
        gradient = self.diff * 65536 // self.base
        if rtt < self.low:
            self.up()
        elif rtt > self.high:
            self.down(rtt - self.high, rtt)
        elif gradient <= 0:
            self.up()
        else:
            self.down(gradient, 65536)

    def loss(self, _now, kind):
        if kind != "rnr":
            self.down(1, 1)

    def says(self, _now):
        return self.rate, None, None, None


class Swift:
    def __init__(self, line, packet, base=20, hops=0, hop=0, span=100, least=102, most=100, ai=1024,
                 beta=819, cut=512, retries=5):
        self.line, self.packet = line, packet
        self.base, self.span = base * US + hops * hop * US, span * US
        self.least, self.most = least * 64, most * 65536
        roots = self.root(self.least) - self.root(self.most)
        self.scale = self.span * 65536 // roots
        self.ai, self.beta, self.cut, self.retries = ai * 64, beta, cut, retries
        self.w, self.rtt, self.free, self.lost = self.most, self.base, 0, 0

    @staticmethod
    def root(w):
        return math.isqrt(2**48 // w)

    def shrink(self, now, keep):
        if now >= self.free:
            self.free = now + self.rtt
            self.w = min(max(self.w * keep // 1024, self.least), self.most)

    def ack(self, now, packets, _size, _left, rtt, _hops):
        self.lost = 0
        if rtt is not None:
            self.rtt = rtt
        above = max(self.root(self.w) - self.root(self.most), 0)
        target = self.base + min(self.scale * above // 65536, self.span)
        if self.rtt < target:
            grow = self.ai * packets
            if self.w >= 65536:
                grow = grow * 65536 // self.w
            self.w = min(max(self.w + grow, self.least), self.most)
        elif rtt is not None:
            excess = self.beta * (self.rtt - target) // self.rtt
            self.shrink(now, 1024 - min(excess, self.cut))

    def loss(self, now, kind):
        if kind == "nak":
            self.shrink(now, 1024 - self.cut)
        elif kind == "timeout":
            self.lost += 1
            self.shrink(now, 0 if self.lost >= self.retries else 1024 - self.cut)

    def says(self, _now):
        rate = self.line
        if self.w < 65536:
            rate = self.packet * 8 * G * self.w // (65536 * self.rtt)
            rate = min(max(rate, 1), self.line)
        return rate, max(self.packet * self.w // 65536, self.packet), None, None


class Hpcc:
    def __init__(self, line, _packet, eta=973, stages=5, rtt=13, ai=None, floor=None):
        self.line, self.t, self.eta, self.stages = line, rtt * US, eta * 1024, stages
        window = lambda rate: rate * self.t * 8192 // G
        self.most = window(line)
        self.ai = window(ai * 10**6 if ai is not None else line // 2500)
        self.least = window(floor * 10**6 if floor is not None else line // 1000)
        self.w = self.wc = self.most
        self.stage = self.u = self.left = 0
        self.before = None

    def ack(self, _now, _packets, size, left, _rtt, hops):
        self.left = max(self.left - size, 0)
        best = None
        if self.before is not None and len(self.before) == len(hops):
            for new, old in zip(hops, self.before):
                tau = new[0] - old[0]
                if tau <= 0:
                    continue
                u = (new[1] - old[1]) * 8 * G * 2**20 // (new[3] * tau)
                u += min(new[2], old[2]) * 8 * G * 2**20 // (new[3] * self.t)
                if u > (best[0] if best else 0):
                    best = (u, min(tau, self.t))
        self.before = hops
        if best is None:
            return
        u, tau = min(best[0], 2**40), best[1]
        self.u = self.u * (self.t - tau) // self.t + u * tau // self.t
        if self.u >= self.eta or self.stage >= self.stages:
            w, stage = self.wc * self.eta // max(self.u, 1), 0
        else:
            w, stage = self.wc, self.stage + 1
        self.w = min(max(w + self.ai, self.least), self.most)
        if self.left == 0:
            self.wc, self.stage, self.left = self.w, stage, left

    def loss(self, _now, _kind):
        pass

    def says(self, _now):
        rate = self.w * 8 * G // (self.t * 65536)
        return min(max(rate, 1), self.line), (self.w + 65535) // 65536, None, None


def record(name, head, model, events):
    """Plays events to a model, and writes what it says after each."""
    lines = [f"# {head}"]
    for now, kind, *rest in events:
        if kind == "cnp":
            model.cnp(now)
        elif kind == "sent":
            model.sent(now, *rest)
        elif kind == "ack":
            model.ack(now, *rest)
        elif kind in ("nak", "timeout", "rnr"):
            model.loss(now, kind)
        words = []
        for value in rest:
            if isinstance(value, list):
                words.append(",".join("/".join(map(str, hop)) for hop in value) or "-")
            else:
                words.append("-" if value is None else str(value))
        says = ["-" if value is None else str(value) for value in model.says(now)]
        lines.append(" ".join([str(now), kind, *words, "=>", *says]))
    folder = os.path.join(os.path.dirname(__file__), "../../testdata/congestion")
    with open(os.path.join(folder, name + ".txt"), "w", encoding="ascii") as file:
        file.write("\n".join(lines) + "\n")
    print(f"{name}: {len(events)} steps", file=sys.stderr)


def steady(start, end, gap, size):
    return [(t, "sent", size) for t in range(start, end, gap)]


def merge(*parts):
    return sorted(sum(parts, []), key=lambda event: event[0])


def cnps(start, count, gap):
    return [(start + i * gap, "cnp") for i in range(count)]


def looks(times):
    return [(t, "look") for t in times]


def reactions(seed, end, gap_max):
    """Random CNPs, packets and looks, with silences of every length."""
    dice, now, events = random.Random(seed), 0, []
    while now < end:
        now += int(gap_max ** dice.random()) + dice.randrange(3) * dice.randrange(500 * US)
        kind = dice.randrange(8)
        if kind < 2:
            events += [(now, "cnp")]
        elif kind < 5:
            events += [(now, "sent", dice.choice([64, 1090, 4170, 60_000, 1_000_000]))]
        else:
            events += [(now, "look")]
    return events


def dcqcn():
    ladder = merge(cnps(10 * US, 1, 1), looks([10 * US + 55 * US * i - (i % 3) for i in range(60)]))
    record("paper-ladder", "paper 40000000000 1090 dcqcn", Paper(40 * G, 1090), ladder)
    burst = merge(cnps(100 * US, 40, 50 * US), steady(0, 6000 * US, 90 * US, 400_000),
                  looks(range(3000 * US, 400_000 * US, 5000 * US)))
    record("paper-burst", "paper 40000000000 1090 dcqcn", Paper(40 * G, 1090), burst)
    hyper = merge(cnps(0, 3, 60 * US), steady(200 * US, 3000 * US, 20 * US, 1_000_000))
    record("paper-hyper", "paper 100000000000 1090 dcqcn:rp_threshold=3,rp_byte_reset=20000,"
           "rp_ai_rate=7,rp_hai_rate=333,rp_min_rate=50,rp_dce_tcp_g=1008,rp_dce_tcp_rtt=20,"
           "rp_time_reset=37,rp_initial_alpha_value=700",
           Paper(100 * G, 1090, g=16, alpha=700, k=20, t=37, b=20000 * 64, f=3, ai=7, hai=333,
                 floor=50), hyper)
    for seed in range(3):
        record(f"paper-random{seed}", "paper 25000000000 4170 dcqcn", Paper(25 * G, 4170),
               reactions(seed, 60_000 * US, 2_000_000))
    ladder = merge(cnps(10 * US, 1, 1), looks([10 * US + 300 * US * i - i % 2 for i in range(50)]))
    record("nvidia-ladder", "nvidia 100000000000 1090 dcqcn", Nvidia(100 * G, 1090), ladder)
    burst = merge(cnps(7 * US, 60, 3 * US + 777), steady(0, 900 * US, 10 * US, 125_000),
                  looks(range(1000 * US, 60_000 * US, 1111 * US)))
    record("nvidia-burst", "nvidia 100000000000 1090 dcqcn", Nvidia(100 * G, 1090), burst)
    record("nvidia-clamp", "nvidia 100000000000 1090 dcqcn:rp_clamp_tgt_rate=1,rp_min_dec_fac=90,"
           "rp_min_rate=1000,rp_rate_to_set_on_first_cnp=40000,rp_threshold=2,rp_hai_rate=200",
           Nvidia(100 * G, 1090, clamp=1, dec=90, floor=1000, first=40000, thr=2, hai=200), burst)
    record("nvidia-noati", "nvidia 25000000000 1090 dcqcn:rp_clamp_tgt_rate_ati=0,rp_time_reset=20,"
           "rp_byte_reset=1000,rp_dce_tcp_g=1000,rp_dce_tcp_rtt=3,rp_initial_alpha_value=900,"
           "rp_rate_reduce_monitor_period=7,rp_gd=12,rp_ai_rate=40",
           Nvidia(25 * G, 1090, ati=0, time=20, byte=1000, g=1000, rtt=3, alpha=900, monitor=7,
                  gd=12, ai=40), burst)
    for seed in range(3):
        record(f"nvidia-random{seed}", "nvidia 25000000000 4170 dcqcn:rp_ai_rate=100",
               Nvidia(25 * G, 4170, ai=100), reactions(seed + 10, 60_000 * US, 2_000_000))


def delays(seed, count):
    """Round-trip times that wander between 5 µs and 1 ms, with losses among them."""
    dice, now, rtt, events = random.Random(seed), 0, 30 * US, []
    for i in range(count):
        now += dice.randrange(1, 40 * US)
        rtt = min(max(rtt + dice.randrange(-20 * US, 21 * US) * dice.choice([1, 1, 4]), 5 * US),
                  1000 * US)
        if i % 17 == 16:
            events.append((now, dice.choice(["nak", "timeout", "timeout", "rnr"])))
        else:
            known = None if dice.randrange(4) == 0 else rtt
            events.append((now, "ack", dice.randrange(1, 9), 1090, 10_900, known, []))
    return events


def ramps():
    """Round-trip times that stay low, rise, stay high and fall."""
    times = [25] * 12 + list(range(60, 700, 40)) + [600] * 8 + list(range(560, 20, -30)) + [22] * 20
    return [(60 * US * i, "ack", 2, 2180, 4360, rtt * US, []) for i, rtt in enumerate(times)]


def by_delay():
    record("timely-ramps", "paper 10000000000 1090 timely", Timely(10 * G, 1090), ramps())
    record("swift-ramps", "paper 10000000000 1090 swift", Swift(10 * G, 1090), ramps())
    record("swift-timeouts", "paper 10000000000 1090 swift:retries=3",
           Swift(10 * G, 1090, retries=3),
           [(500 * US * i, "timeout") if i % 9 < 4 else
            (500 * US * i, "ack", 3, 3270, 0, 21 * US, []) for i in range(60)])
    for seed in range(2):
        record(f"timely-random{seed}", "paper 40000000000 1090 timely:ai_rate=11,weight=20,low=10",
               Timely(40 * G, 1090, ai=11, weight=20, low=10), delays(seed, 120))
        record(f"swift-random{seed}", "paper 40000000000 4170 swift:hops=4,hop=3,ai=300,max_window=40",
               Swift(40 * G, 4170, hops=4, hop=3, ai=300, most=40), delays(seed, 120))


def by_telemetry():
    for seed in range(2):
        dice, now, events = random.Random(seed), 0, []
        hops = [[0, 0, 0, 100 * G], [0, 0, 0, 40 * G], [0, 0, 0, 400 * G]]
        for _ in range(150):
            gap = dice.randrange(100, 6 * US)
            now += gap
            for hop in hops:
                used = hop[3] * gap // 8 // G
                hop[0] = now - dice.randrange(50)
                hop[1] += used * dice.randrange(20, 101) // 100
                hop[2] = max(hop[2] + dice.randrange(-20_000, 20_001), 0)
            told = [list(hop) for hop in hops]
            if dice.randrange(10) == 0:
                told = told[:2]
            left = dice.randrange(0, 60_000)
            events.append((now, "ack", 1, 1090, left, None, told))
        record(f"hpcc-random{seed}", "paper 100000000000 1090 hpcc", Hpcc(100 * G, 1090), events)
    idle = [(3 * US * i, "ack", 1, 50_000, 100_000, None,
             [[3 * US * i, 30_000 * i if i < 40 else 1_200_000, 0, 100 * G]]) for i in range(80)]
    record("hpcc-idle", "paper 100000000000 1090 hpcc:max_stage=2,utilization=900,base_rtt=9",
           Hpcc(100 * G, 1090, stages=2, eta=900, rtt=9), idle)


if __name__ == "__main__":
    dcqcn()
    by_delay()
    by_telemetry()
