/* What all connections together show: what stands out, and the matrix of hosts. */

/* Connections from which on there are counts by kind, and hosts from which on there is a matrix. */
const FLEET_MIN = 32, MATRIX_HOSTS_MIN = 3;

/* Hosts, paths, priorities and times that stand out; `search` shows connections in the table. */
function outstandingPanel(groups, search) {
    if (groups.outstanding.length + groups.bursts.length === 0) return null;
    const items = groups.outstanding.map(group => {
        const examples = group.examples.map(flow => make("a", { class: "frame", href: "#" + flow }, "#" + flow));
        const all = make("button", { type: "button", class: "quiet", onclick: () => search(group.search) }, "Show its connections");
        return make("li", { class: "s" + group.severity }, make("p", { class: "subject" }, group.subject), make("p", {}, group.text),
            make("p", { class: "advice" }, group.advice), make("p", { class: "frames" }, examples.length ? "for example " : null, ...examples, all));
    });
    const bursts = groups.bursts.map(text => make("li", { class: "s1" }, make("p", {}, text)));
    return make("section", { class: "panel", id: "outstanding" }, make("h2", {}, "What stands out"), make("ol", { class: "findings groups" }, ...items, ...bursts));
}

/* Connections by kind of finding. */
function kindsPanel(groups) {
    if (groups.kinds.length === 0 || data.connections.length < FLEET_MIN) return null;
    return make("section", { class: "panel" }, make("h2", {}, "Connections by what was found"),
        make("ul", { class: "kinds" }, ...groups.kinds.map(text => make("li", {}, text))));
}

/* What a cell of the matrix can show: heading, part and whole. */
const MATRIX_MEASURES = [
    ["with findings", cell => [cell.affected, cell.connections], "connections"],
    ["retransmitted", cell => [cell.retransmitted, cell.packets], "packets"],
    ["lost", cell => [cell.lost, cell.packets + cell.lost], "packets"],
];

/* Source hosts as rows, destination hosts as columns, shares as colors. */
class HostMatrixPanel {
    constructor(matrix, search) {
        this.matrix = matrix;
        this.search = search;
        this.measure = 0;
        this.cells = new Map(matrix.cells.map(cell => [cell.source * 64 + cell.destination, cell]));
        this.names = matrix.other_hosts > 0 ? [...matrix.hosts, counted(matrix.other_hosts, "other host")] : matrix.hosts;
        const choices = MATRIX_MEASURES.map(([name], index) => make("label", { class: "choice" },
            make("input", { type: "radio", name: "measure", checked: index === 0, onchange: () => { this.measure = index; this.fill(); } }), name));
        this.table = make("table", { class: "matrix" });
        this.says = make("p", { class: "hint", role: "status" });
        this.element = make("section", { class: "panel", id: "matrix" },
            make("div", { class: "panel-head" }, make("h2", {}, "Hosts"), make("fieldset", { class: "choices" }, make("legend", {}, "Share"), ...choices)),
            make("p", { class: "hint" }, "Rows request, columns respond; the worst hosts first. A click on a cell lists its connections."),
            make("div", { class: "scroll" }, this.table), this.says);
        this.fill();
    }
    fill() {
        const [, parts] = MATRIX_MEASURES[this.measure];
        let most = 0;
        for (const cell of this.matrix.cells) {
            const [part, whole] = parts(cell);
            if (whole > 0) most = Math.max(most, part / whole);
        }
        const head = make("tr", {}, make("th", {}), make("th", {}), ...this.names.map((name, i) =>
            make("th", { scope: "col", title: name }, i < this.matrix.hosts.length ? String(i + 1) : "rest")));
        const rows = this.names.map((name, row) => make("tr", {}, make("td", { class: "place" }, row < this.matrix.hosts.length ? String(row + 1) : ""),
            make("th", { scope: "row" }, name), ...this.names.map((_, column) => this.cell(row, column, parts, most))));
        this.table.replaceChildren(make("thead", {}, head), make("tbody", {}, ...rows));
    }
    cell(row, column, parts, most) {
        const cell = this.cells.get(row * 64 + column);
        if (!cell) return make("td", { class: "none" });
        const [part, whole] = parts(cell), share = whole > 0 ? part / whole : 0;
        const percent = share * 100, text = part === 0 ? "" : percent < 0.95 ? "<1" : percent >= 99.5 && part < whole ? "99" : percent.toFixed(0);
        const element = make("td", { class: most > 0 && share / most > 0.3 ? "cell high" : "cell", onclick: () => this.choose(row, column),
            onmouseenter: () => { this.says.textContent = this.words(cell); } }, text);
        /* A square root, so that small shares are seen beside large ones. */
        element.style.setProperty("--share", String(most > 0 ? Math.round(100 * Math.sqrt(share / most)) : 0) + "%");
        return element;
    }
    words(cell) {
        const name = index => this.names[index];
        return `${name(cell.source)} → ${name(cell.destination)}: ${counted(cell.connections, "connection")}, ${formatCount(cell.affected)} with findings; ` +
            `${counted(cell.packets, "packet")}, ${formatCount(cell.retransmitted)} retransmitted, ${formatCount(cell.lost)} lost`;
    }
    choose(row, column) {
        const hosts = [row, column].filter(index => index < this.matrix.hosts.length).map(index => this.names[index] + " ");
        if (hosts.length > 0) this.search(hosts.join("& "));
    }
}

/* A range from the median to the greatest on a logarithmic axis, with the 99th percentile between. */
function rangePlot(values, [low, high], format) {
    if (values.count === 0) return make("td", { class: "range" }, make("span", { class: "hint" }, "–"));
    const place = value => 100 * (Math.log(Math.max(value, low)) - Math.log(low)) / Math.max(Math.log(high) - Math.log(low), 1e-9);
    const part = (name, from, to) => {
        const element = make("span", { class: name });
        element.style.left = place(from) + "%";
        element.style.width = Math.max(place(to) - place(from), 0) + "%";
        return element;
    };
    const text = `p50 ${format(values.p50)}, p99 ${format(values.p99)}, max ${format(values.max)}`;
    return make("td", { class: "range", title: text }, make("span", { class: "axis", role: "img", "aria-label": text },
        part("thin", values.min, values.max), part("thick", values.p50, values.p99), part("dot", values.p50, values.p50)), make("span", { class: "says" }, text));
}

/* Latency and bytes in flight of the worst pairs of hosts. */
function pairsPanel({ pairs, others }, search) {
    if (pairs.length < 2) return null;
    const range = key => {
        const known = pairs.map(pair => pair[key]).filter(values => values.count > 0);
        return [Math.max(1, Math.min(...known.map(values => values.min))), Math.max(2, ...known.map(values => values.max))];
    };
    const latency = range("latency"), inflight = range("inflight");
    const rows = pairs.map(pair => make("tr", { onclick: () => search(pair.hosts.map(host => host + " ").join("& ")) },
        make("th", { scope: "row" }, pair.hosts.join(" → ")), make("td", { class: pair.affected ? "number bad" : "number zero" }, `${formatCount(pair.affected)} of ${formatCount(pair.connections)}`),
        rangePlot(pair.latency, latency, formatDuration), rangePlot(pair.inflight, inflight, formatBytes)));
    const between = ([low, high], format) => ` ${format(low)} to ${format(high)}, logarithmic`;
    return make("section", { class: "panel", id: "pairs" }, make("h2", {}, "Host pairs"),
        make("p", { class: "hint" }, "The worst first. Dot: median; thick: to the 99th percentile; thin: least to greatest. Bytes in flight of a connection whenever it sends." +
            (others > 0 ? ` ${counted(others, "more pair")} not shown.` : "")),
        make("div", { class: "scroll" }, make("table", { class: "pairs" }, make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "requester → responder"), make("th", { scope: "col" }, "with findings"),
            make("th", { scope: "col" }, "message latency", make("span", { class: "unit" }, between(latency, formatDuration))),
            make("th", { scope: "col" }, "bytes in flight", make("span", { class: "unit" }, between(inflight, formatBytes))))), make("tbody", {}, ...rows))));
}
