/* The view of one connection: what it is, its findings, plots and ladder. */

class ConnectionView {
    constructor(main, connection, data, frames) {
        this.connection = connection;
        this.data = data;
        this.shown = CLASSES.map(() => true);
        this.sequence = { direction: busierDirection(connection) };
        this.latency = {};
        this.wantedFrames = frames;
        this.plots = [];
        main.replaceChildren(...this.heading());
        this.place = make("div", { class: "detail" }, make("p", { class: "hint" }, "Unpacking…"));
        main.append(this.place);
        this.ready = unpack(connection.flow).then(columns => this.draw(columns), error => {
            this.place.replaceChildren(make("p", { class: "notice" },
                "The packets cannot be unpacked: " + error.message + ". A browser of 2023 or later is needed."));
        });
    }

    heading() {
        const { connection, data } = this, row = connection.row;
        const place = data.connections.indexOf(connection);
        const neighbour = (step, text, label) => {
            const other = data.connections[place + step];
            return make("a", { class: "button quiet", "aria-label": label, title: label, ...(other ? { href: "#" + other.flow } : { "aria-disabled": "true" }) }, text);
        };
        const nav = make("nav", { class: "crumbs", "aria-label": "Connections" },
            make("a", { href: "#" }, "← all connections"), neighbour(-1, "‹", "Previous connection"), neighbour(1, "›", "Next connection"));
        const [a, b] = connection.ends.map(end => end.text);
        const title = make("h1", { class: "ends" }, make("span", { class: "flow" }, "#" + connection.flow), " ", a, make("span", { class: "arrow" }, " ↔ "), b);
        const facts = [
            [connection.service + (connection.mtu ? ", MTU " + connection.mtu : ""), "service"],
            [formatCount(row.packets), "packets"],
            [formatCount(row.messages), "messages"],
            [row.failed ? formatCount(row.failed) : null, "failed", "bad"],
            [connection.nanos ? formatRate(row.goodput_bytes * 8e9 / connection.nanos) : "–", "goodput"],
            [formatCount(row.retransmissions), "retransmissions", row.retransmissions ? "warn" : ""],
            [formatCount(row.lost), "lost", row.lost ? "bad" : ""],
            [formatCount(row.naks) + " / " + formatCount(row.rnr_naks), "NAK / RNR", row.naks ? "bad" : row.rnr_naks ? "warn" : ""],
            [row.ce_marked || row.cnps ? formatCount(row.ce_marked) + " / " + formatCount(row.cnps) : null, "CE / CNP", "warn"],
            [row.latency.count ? formatDuration(row.latency.p50) + " / " + formatDuration(row.latency.p99) : "–", "latency p50 / p99"],
            [formatDuration(connection.nanos), "duration"],
        ];
        const findings = data.findings.filter(finding => finding.flow === connection.flow);
        return [make("div", { class: "title" }, nav, title), factList(facts), findings.length ? findingList(findings, false, 2) : null, setupLine(connection)].filter(Boolean);
    }

    draw(columns) {
        const { connection } = this, { packets, losses, messages, series } = columns;
        this.columns = columns;
        const times = packets.time, count = packets.count;
        const from = count ? times[0] : connection.first, to = count ? times[count - 1] : connection.first + connection.nanos;
        this.window = new TimeWindow(from / 1e9, to / 1e9);
        this.ladder = new Ladder(connection, columns, this.data, index => this.focusPacket(index));
        const boxes = ["sequence", "rate", "latency"].map(name => make("div", { class: "plot", id: "plot-" + name }));
        const controls = this.controls();
        const remarks = connection.left_out[0] > 0
            ? make("p", { class: "notice" }, `This page holds ${formatCount(packets.count)} packets of this connection, evenly spread; ` +
                `${counted(connection.left_out[0], "packet")} and ${counted(connection.left_out[1], "message")} are left out. roce flows -q#${connection.flow} shows all.`) : null;
        const plots = make("section", { class: "panel plots", "aria-label": "Plots" }, controls.top, remarks,
            make("h3", {}, "PSN over time"), boxes[0], controls.legend,
            make("h3", {}, "Throughput ", rateLegend(connection, series && connection.left_out[0] > 0)), boxes[1],
            make("h3", {}, "Message latency ", make("span", { class: "unit" }, "at completion, logarithmic")), boxes[2]);
        this.place.replaceChildren(plots, this.ladder.element);
        const small = boxes[0].clientWidth < 500;
        this.plots = [
            new WindowPlot(boxes[0], small ? 240 : 300, this.window, this.sequenceOptions(), sequenceSelector(packets, this.shown, this.sequence)),
            new WindowPlot(boxes[1], 120, this.window, rateOptions(), rateSelector(packets, series, connection.left_out[0] > 0)),
            new WindowPlot(boxes[2], 130, this.window, this.latencyOptions(messages), latencySelector(messages, this.latency)),
        ];
        const refresh = oncePerFrame(() => this.refresh());
        this.window.listeners.push(refresh);
        this.resized = refresh;
        window.addEventListener("resize", refresh);
        this.ladder.show(this.window);
        this.updateControls();
        if (this.wantedFrames) this.showFrames(this.wantedFrames);
    }

    refresh() {
        hideTip();
        this.plots.forEach(plot => plot.refresh());
        this.ladder.show(this.window);
        this.updateControls();
    }

    controls() {
        const button = (text, label, action) => make("button", { type: "button", class: "quiet", "aria-label": label, title: label, onclick: action }, text);
        this.where = make("span", { class: "where", role: "status" });
        const directions = this.connection.ends.map((end, index) => {
            const input = make("input", { type: "radio", name: "direction", value: index, checked: this.sequence.direction === index,
                onchange: () => { this.sequence.direction = index; this.updateLegend(); this.plots[0].refresh(); } });
            return make("label", { class: "choice" }, input, end.text);
        });
        const top = make("div", { class: "controls" },
            make("fieldset", { class: "choices" }, make("legend", {}, "Requests of"), ...directions), this.where,
            make("span", { class: "group" },
                button("◀", "Pan left (←)", () => this.window.pan(-0.25)), button("▶", "Pan right (→)", () => this.window.pan(0.25)),
                button("+", "Zoom in (+)", () => this.window.zoom(0.5)), button("−", "Zoom out (−)", () => this.window.zoom(2)),
                button("Reset", "Show all (0)", () => this.window.reset())));
        this.legend = make("div", { class: "legend", role: "group", "aria-label": "Marks" });
        this.updateLegendSoon = true;
        return { top, legend: this.legend };
    }

    /* A button per class that occurs, with how often. */
    updateLegend() {
        const counts = CLASSES.map(() => 0), { flags, count } = this.columns.packets;
        for (let i = 0; i < count; i++) {
            const kind = classOf(flags[i]);
            if (requesterOf(flags[i]) === this.sequence.direction) counts[kind]++;
        }
        this.legend.replaceChildren(...CLASSES.map((one, index) => counts[index] === 0 ? null : make("button", {
            type: "button", class: "mark m-" + one.name, "aria-pressed": String(this.shown[index]),
            onclick: event => {
                this.shown[index] = !this.shown[index];
                event.currentTarget.setAttribute("aria-pressed", String(this.shown[index]));
                this.plots[0].refresh();
            },
        }, make("span", { class: "glyph", "aria-hidden": "true" }, one.glyph), one.label + " ", make("b", {}, formatCount(counts[index])))).filter(Boolean));
    }

    updateControls() {
        if (this.updateLegendSoon) this.updateLegend();
        this.updateLegendSoon = false;
        const { from, to } = this.window, span = (to - from) * 1e9;
        this.where.textContent = this.window.isFull ? "all: " + formatDuration(span) : formatTime(from * 1e9, span) + " – " + formatTime(to * 1e9, span) + " s (" + formatDuration(span) + ")";
    }

    sequenceOptions() {
        return {
            scales: { y: { range: () => this.sequence.range || [0, 1] } },
            yAxis: { values: (u, splits) => splits.map(split => Number.isInteger(split) && split >= 0 ? String(psnOf(split)) : "") },
            series: CLASSES.map((one, index) => pointSeries(one.label, one.shape, one.size, () => colorOf(index), index > CLASS.response ? () => this.sequence.scale : undefined)),
            hooks: { setCursor: [u => this.hoverPacket(u)] },
        };
    }

    latencyOptions(messages) {
        return {
            scales: { y: { distr: 3, range: () => this.latency.range || [1, 10] } },
            yAxis: { splits: logSplits, filter: (u, splits) => splits, values: (u, splits) => splits.map(formatDuration) },
            series: [pointSeries("completed", "dot", 3.5, () => css("--accent")), pointSeries("not completed", "cross", 8, () => css("--lost"))],
            hooks: { setCursor: [u => this.hoverMessage(u, messages)] },
        };
    }

    hoverPacket(u) {
        if (u.cursor.event == null) return;
        const point = nearestPoint(u);
        if (point < 0) return hideTip();
        const { packets, losses } = this.columns, i = this.sequence.indices[point];
        const captured = !(packets.flags[i] & FLAG.missing);
        const head = (captured ? "frame " + packets.frame[i] + " at " : "about ") + formatTime(packets.time[i]) + " s";
        showTip(u, point, [head, packetLine(this.connection, packets, i, this.data), ...packetMarks(packets, losses, i)]);
        this.ladder.highlight(i, true);
    }

    hoverMessage(u, messages) {
        if (u.cursor.event == null) return;
        const point = nearestPoint(u);
        if (point < 0) return hideTip();
        const i = this.latency.indices[point], flags = messages.flags[i];
        const operation = this.data.operations.find(([code]) => code === messages.operation[i])?.[1] || "message";
        const from = this.connection.ends[flags & 1].text;
        const end = messages.endFrame[i] ? " – " + messages.endFrame[i] : "";
        showTip(u, point, [`${operation} of ${formatBytes(messages.bytes[i])} by ${from}`, OUTCOMES[flags >> 1] + " after " + formatDuration(messages.latency[i]), `frames ${messages.firstFrame[i]}${end}`]);
    }

    /* Zooms to the surroundings of a packet. */
    focusPacket(index) {
        const { time, flags } = this.columns.packets, at = time[index] / 1e9;
        const span = Math.min(this.window.to - this.window.from, neighbourhood(time, index));
        if (this.sequence.direction !== requesterOf(flags[index])) {
            this.place.querySelectorAll("input[name=direction]")[requesterOf(flags[index])].click();
        }
        this.window.set(at - span / 2, at + span / 2);
        requestAnimationFrame(() => requestAnimationFrame(() => this.ladder.highlight(index, true)));
    }

    showFrames(frames) {
        const { frame, count } = this.columns.packets, wanted = new Set(frames), found = [];
        for (let i = 0; i < count; i++) if (wanted.has(frame[i])) found.push(i);
        const first = found.find(i => this.columns.packets.frame[i] === frames[0]) ?? found[0];
        if (first !== undefined) this.focusPacket(first);
    }

    key(name) {
        const actions = {
            ArrowLeft: () => this.window.pan(-0.25), ArrowRight: () => this.window.pan(0.25), "+": () => this.window.zoom(0.5),
            "=": () => this.window.zoom(0.5), "-": () => this.window.zoom(2), 0: () => this.window.reset(),
        };
        if (!this.window || !actions[name]) return false;
        actions[name]();
        return true;
    }

    recolor() { this.plots.forEach(plot => plot.redraw()); }

    destroy() {
        hideTip();
        window.removeEventListener("resize", this.resized);
        this.plots.forEach(plot => plot.destroy());
    }
}

/* Powers of ten; where there are few of them, twice and five times as much too. */
function logSplits(u, axis, low, high) {
    const from = Math.floor(Math.log10(low)), to = Math.ceil(Math.log10(high)), splits = [];
    const steps = to - from > 3 ? [1] : [1, 2, 5], every = Math.max(1, Math.round((to - from) / 5));
    for (let power = from; power <= to; power += every) {
        for (const step of steps) {
            const value = step * 10 ** power;
            if (value >= low && value <= high) splits.push(value);
        }
    }
    return splits;
}

/* A window in which the packets around `index` can be told apart. */
function neighbourhood(time, index) {
    const first = Math.max(0, index - 40), last = Math.min(time.length - 1, index + 40);
    return Math.max((time[last] - time[first]) / 1e9, 1e-6) * 1.1;
}

const busierDirection = connection => {
    const [a, b] = connection.directions;
    return b.requests + b.responses > a.requests + a.responses ? 1 : 0;
};

function rateOptions() {
    const stepped = uPlot.paths.stepped({ align: 1 });
    const area = (label, color) => ({ label, stroke: () => css(color), fill: () => css(color) + "22", width: 1.2, paths: stepped, points: { show: false } });
    return {
        scales: { y: { range: (u, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
        yAxis: { values: (u, splits) => splits.map(formatRate), space: 28 },
        series: [area("first", "--request"), area("second", "--response"), area("retransmitted", "--retransmission")],
        hooks: {},
    };
}

function rateLegend(connection, isThinned) {
    const key = (name, text) => make("span", { class: "key m-" + name }, make("span", { class: "glyph", "aria-hidden": "true" }, "▬"), text);
    return make("span", { class: "unit" }, key("request", "by " + connection.ends[0].text), key("response", "by " + connection.ends[1].text),
        isThinned ? null : key("retransmission", "retransmitted"));
}

function setupLine(connection) {
    const setup = connection.setup, words = [];
    if (connection.pairing === "unpaired") words.push("Only one direction was captured.");
    if (setup) {
        const parts = [];
        if (setup.application_port != null) parts.push("application port " + setup.application_port);
        if (setup.path_mtu != null) parts.push("MTU " + setup.path_mtu);
        if (setup.ack_timeout != null) parts.push("ACK timeout " + formatDuration(4096 * 2 ** setup.ack_timeout));
        if (setup.retry_count != null) parts.push("retries " + setup.retry_count);
        if (setup.rnr_retry_count != null) parts.push("RNR retries " + (setup.rnr_retry_count === 7 ? "unlimited" : setup.rnr_retry_count));
        if (setup.request_frame != null) parts.push("REQ in frame " + setup.request_frame);
        if (setup.reply_frame != null) parts.push("REP in frame " + setup.reply_frame);
        words.push("Connection manager: " + parts.join(", ") + ".");
    }
    return words.length ? make("p", { class: "hint" }, words.join(" ")) : null;
}
