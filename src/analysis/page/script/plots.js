/* The three plots of a connection over one window of time. */

/* Points of a class that fall into the same cell of this many pixels are drawn once: packets, and marks, which are larger. */
const CELL = 2, MARK_CELL = 5;
/* From so many marks in a window on they are drawn smaller. */
const MARKS_MANY = 120;
/* The shortest window, in nanoseconds. */
const WINDOW_MIN = 200;

/* The part of time that the plots show, in seconds, and who wants to know when it changes. */
class TimeWindow {
    constructor(from, to) {
        const pad = Math.max((to - from) * 0.01, 1e-6);
        this.full = [from - pad, to + pad];
        [this.from, this.to] = this.full;
        this.listeners = [];
    }
    set(from, to) {
        const [first, last] = this.full;
        const span = Math.min(Math.max(to - from, WINDOW_MIN / 1e9), last - first);
        const start = Math.min(Math.max(from, first), last - span);
        if (start === this.from && start + span === this.to) return;
        this.from = start;
        this.to = start + span;
        this.listeners.forEach(listener => listener());
    }
    reset() { this.set(...this.full); }
    zoom(factor, center = (this.from + this.to) / 2) {
        this.set(center - (center - this.from) * factor, center + (this.to - center) * factor);
    }
    pan(share) {
        const step = (this.to - this.from) * share;
        this.set(this.from + step, this.to + step);
    }
    get isFull() { return this.from === this.full[0] && this.to === this.full[1]; }
}

/* Seconds on an axis, in the unit and with the digits that its ticks need. */
function timeTicks(u, splits) {
    const largest = Math.max(...splits.map(Math.abs), 0);
    const [unit, name] = largest < 1e-3 ? [1e6, "µs"] : largest < 1 ? [1e3, "ms"] : [1, "s"];
    const step = splits.length > 1 ? (splits[1] - splits[0]) * unit : 1;
    const digits = Math.min(9, Math.max(0, -Math.floor(Math.log10(step) + 1e-9)));
    return splits.map((split, i) => (split * unit).toFixed(digits) + (i === splits.length - 1 ? " " + name : ""));
}

const axisColors = () => ({ stroke: () => css("--muted"), grid: { stroke: () => css("--grid"), width: 1 }, ticks: { show: false } });

/* What all three have in common. */
function plotOptions(element, height, windowOfTime, more) {
    const xAxis = { ...axisColors(), values: timeTicks, size: 26, space: 90, font: css("--plot-font") };
    const yAxis = { ...axisColors(), size: 68, font: css("--plot-font"), ...more.yAxis };
    return {
        width: Math.max(element.clientWidth, 200),
        height,
        legend: { show: false },
        padding: [8, 12, 0, 0],
        cursor: {
            drag: { x: true, y: false, setScale: false },
            points: { show: false },
            sync: { key: "time", scales: ["x", null] },
            bind: { dblclick: () => () => { windowOfTime.reset(); } },
        },
        scales: { x: { time: false, range: () => [windowOfTime.from, windowOfTime.to] }, ...more.scales },
        axes: [xAxis, yAxis],
        series: [{}, ...more.series],
        hooks: {
            setSelect: [u => {
                const { left, width } = u.select;
                if (width < 3) return;
                const from = u.posToVal(left, "x"), to = u.posToVal(left + width, "x");
                u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
                windowOfTime.set(from, to);
            }],
            ...more.hooks,
        },
    };
}

/* A plot whose data depend on the window: `select` makes them. */
class WindowPlot {
    constructor(element, height, windowOfTime, more, select) {
        this.element = element;
        this.select = select;
        this.windowOfTime = windowOfTime;
        this.height = height;
        this.u = new uPlot(plotOptions(element, height, windowOfTime, more), [[]], element);
        addGestures(this.u, windowOfTime);
        this.refresh();
    }
    refresh() {
        const width = Math.max(this.element.clientWidth, 200);
        if (width !== this.u.width) this.u.setSize({ width, height: this.height });
        this.u.setData(this.select(this.windowOfTime, this.u.bbox.width / devicePixelRatio, this.u.bbox.height / devicePixelRatio));
    }
    redraw() { this.u.redraw(false, true); }
    destroy() { this.u.destroy(); }
}

/* Wheel: zoom. Shift and drag: pan. Touch: one finger pans, two zoom. */
function addGestures(u, windowOfTime) {
    const over = u.over, fingers = new Map();
    over.addEventListener("wheel", event => {
        event.preventDefault();
        if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
            windowOfTime.pan((event.deltaX || event.deltaY) / 1000);
        } else {
            const center = u.posToVal(event.offsetX, "x");
            windowOfTime.zoom(Math.exp(Math.max(-100, Math.min(100, event.deltaY)) / 400), center);
        }
    }, { passive: false });
    const move = event => {
        const before = fingers.get(event.pointerId);
        if (!before) return;
        const scale = (windowOfTime.to - windowOfTime.from) / over.clientWidth;
        if (fingers.size === 1) {
            const step = (before.x - event.clientX) * scale;
            windowOfTime.set(windowOfTime.from + step, windowOfTime.to + step);
        } else {
            const other = [...fingers.entries()].find(([id]) => id !== event.pointerId)[1];
            const was = Math.abs(before.x - other.x), is = Math.abs(event.clientX - other.x);
            if (was > 10 && is > 10) {
                const middle = (other.x + event.clientX) / 2 - over.getBoundingClientRect().left;
                windowOfTime.zoom(was / is, u.posToVal(middle, "x"));
            }
        }
        fingers.set(event.pointerId, { x: event.clientX });
    };
    const end = event => fingers.delete(event.pointerId);
    over.addEventListener("pointerdown", event => {
        if (event.pointerType === "mouse" && !event.shiftKey) return;
        fingers.set(event.pointerId, { x: event.clientX });
        over.setPointerCapture(event.pointerId);
    });
    over.addEventListener("mousedown", event => { if (event.shiftKey) event.stopImmediatePropagation(); }, true);
    over.addEventListener("pointermove", move);
    over.addEventListener("pointerup", end);
    over.addEventListener("pointercancel", end);
}

/* PSNs over time of the requests of one end, at most one point a cell and class. */
function sequenceSelector(packets, shown, state) {
    return (windowOfTime, width, height) => {
        const first = lowerBound(packets.time, windowOfTime.from * 1e9), end = lowerBound(packets.time, windowOfTime.to * 1e9);
        /* An empty window keeps the range that it had. */
        const [low, high] = sequenceRange(packets, first, end, state.direction) || state.range || [0, 1];
        state.range = [low, high];
        const grids = CLASSES.map((one, kind) => new CellGrid(windowOfTime, low, high, width, height, kind > CLASS.response ? MARK_CELL : CELL));
        const xs = [], ys = CLASSES.map(() => []), indices = [];
        let level = low, marks = 0;
        for (let i = first; i < end; i++) {
            const flags = packets.flags[i];
            if (requesterOf(flags) !== state.direction) continue;
            const kind = classOf(flags);
            /* A CNP has no PSN of its own: it stands where the sequence is. */
            const y = kind === CLASS.cnp ? level : packets.sequence[i];
            if (kind === CLASS.request || kind === CLASS.retransmission) level = y;
            if (!shown[kind]) continue;
            const x = packets.time[i] / 1e9;
            if (!grids[kind].take(x, y)) continue;
            if (kind > CLASS.response) marks++;
            xs.push(x);
            indices.push(i);
            for (let k = 0; k < ys.length; k++) ys[k].push(k === kind ? y : null);
        }
        state.indices = indices;
        state.scale = marks > MARKS_MANY ? Math.max(0.55, Math.sqrt(MARKS_MANY / marks)) : 1;
        return [xs, ...ys];
    };
}

/* Which cells of a plot have a point. */
class CellGrid {
    constructor(windowOfTime, low, high, width, height, size) {
        const columns = Math.ceil(width / size) + 1;
        this.rows = Math.ceil(height / size) + 2;
        this.from = windowOfTime.from;
        this.low = low;
        this.xScale = columns / (windowOfTime.to - windowOfTime.from);
        this.yScale = (this.rows - 1) / (high - low);
        this.taken = new Uint8Array((columns + 1) * this.rows);
    }
    /* Whether the cell of a point was free. */
    take(x, y) {
        const cell = Math.floor((x - this.from) * this.xScale) * this.rows + Math.floor((y - this.low) * this.yScale);
        if (this.taken[cell]) return false;
        this.taken[cell] = 1;
        return true;
    }
}

function sequenceRange(packets, first, end, direction) {
    let low = Infinity, high = -Infinity;
    for (let i = first; i < end; i++) {
        const flags = packets.flags[i], role = roleOf(flags);
        if (role === ROLE.cnp || requesterOf(flags) !== direction) continue;
        const value = packets.sequence[i];
        if (value < low) low = value;
        if (value > high) high = value;
    }
    if (low > high) return null;
    const pad = Math.max((high - low) * 0.04, 1);
    return [low - pad, high + pad];
}

/* Bits per second of each end, and of retransmissions, in steps of the window. */
function rateSelector(packets, series, isThinned) {
    return (windowOfTime, width) => {
        if (isThinned && series) return seriesRates(series, windowOfTime);
        const steps = Math.max(20, Math.min(300, Math.floor(width / 4)));
        const from = windowOfTime.from * 1e9, span = (windowOfTime.to - windowOfTime.from) * 1e9, step = span / steps;
        const bytes = [new Float64Array(steps), new Float64Array(steps), new Float64Array(steps)];
        const end = lowerBound(packets.time, windowOfTime.to * 1e9);
        for (let i = lowerBound(packets.time, from); i < end; i++) {
            const at = Math.min(steps - 1, Math.floor((packets.time[i] - from) / step));
            bytes[senderOf(packets.flags[i])][at] += packets.wire[i];
            if (causeOf(packets.flags[i])) bytes[2][at] += packets.wire[i];
        }
        const xs = Array.from({ length: steps + 1 }, (_, i) => (from + i * step) / 1e9);
        const rate = list => [...Array.from(list, value => value * 8e9 / step), null];
        return [xs, rate(bytes[0]), rate(bytes[1]), rate(bytes[2])];
    };
}

function seriesRates(series, windowOfTime) {
    const xs = [], rates = [[], []];
    for (let i = 0; i < series.bytes[0].length; i++) {
        const x = (series.start + i * series.interval) / 1e9;
        if (x + series.interval / 1e9 < windowOfTime.from || x > windowOfTime.to) continue;
        xs.push(x);
        rates.forEach((list, end) => list.push(series.bytes[end][i] * 8e9 / series.interval));
    }
    return [xs, ...rates, xs.map(() => null)];
}

/* Latencies of messages over the time of their completion: completed, and ended otherwise. */
function latencySelector(messages, state) {
    return (windowOfTime, width, height) => {
        const first = lowerBound(messages.end, windowOfTime.from * 1e9), end = lowerBound(messages.end, windowOfTime.to * 1e9);
        let low = Infinity, high = 1;
        for (let i = first; i < end; i++) {
            low = Math.min(low, Math.max(messages.latency[i], 1));
            high = Math.max(high, messages.latency[i]);
        }
        state.range = low <= high ? [low / 1.5, high * 1.5] : state.range || [1000, 1000000];
        const [logLow, logHigh] = state.range.map(Math.log);
        const grids = [0, 1].map(() => new CellGrid(windowOfTime, logLow, logHigh, width, height, CELL));
        const xs = [], completed = [], failed = [], indices = [];
        for (let i = first; i < end; i++) {
            const x = messages.end[i] / 1e9, y = Math.max(messages.latency[i], 1), kind = (messages.flags[i] >> 1) === 0 ? 0 : 1;
            if (!grids[kind].take(x, Math.log(y))) continue;
            xs.push(x);
            indices.push(i);
            completed.push(kind === 0 ? y : null);
            failed.push(kind === 1 ? y : null);
        }
        state.indices = indices;
        return [xs, completed, failed];
    };
}

/* The drawn point nearest to the cursor, as a position in the plot's data, or -1. */
function nearestPoint(u, reach = 24) {
    const { left, top } = u.cursor, xs = u.data[0];
    if (left == null || left < 0) return -1;
    const from = lowerBound(xs, u.posToVal(left - reach, "x"));
    const x = i => u.valToPos(xs[i], "x");
    let best = -1, least = reach * reach;
    for (let i = from; i < xs.length && x(i) <= left + reach; i++) {
        for (let s = 1; s < u.data.length; s++) {
            const value = u.data[s][i];
            if (value == null) continue;
            const dx = x(i) - left, dy = u.valToPos(value, u.series[s].scale) - top;
            /* Marks are found more easily than what is under them. */
            const distance = (dx * dx + dy * dy) * (s > 2 ? 0.5 : 1);
            if (distance < least) [best, least] = [i, distance];
        }
    }
    return best;
}
