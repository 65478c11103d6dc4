/* The overview, the routes between it and the connections, colors and keys. */

const TABLE_ROWS = 200;
const data = JSON.parse(document.getElementById("data").textContent);
const byFlow = new Map(data.connections.map(one => [one.flow, one]));
const main = document.getElementById("main");
const tip = document.getElementById("tip");
let view = null;

/* Numbers with names below them. */
function factList(facts) {
    return make("dl", { class: "facts" }, ...facts.filter(([value]) => value != null).map(([value, name, tone]) =>
        make("div", { class: tone || "" }, make("dt", {}, name), make("dd", {}, value))));
}

/* Findings, all but the first `shown` folded; a click on a frame opens the connection there. */
function findingList(findings, isLinked, shown) {
    const items = findingItems(findings.slice(0, shown), isLinked), rest = findings.slice(shown);
    const list = make("ol", { class: "findings" });
    const more = rest.length === 0 ? null : make("details", { ontoggle: () => { if (!list.hasChildNodes()) list.append(...findingItems(rest, isLinked)); } },
        make("summary", {}, counted(rest.length, "more finding")), list);
    return make("div", { class: "finding-list" }, make("ol", { class: "findings" }, ...items), more);
}

function findingItems(findings, isLinked) {
    return findings.map(finding => {
        const frames = finding.frames.slice(0, 8).map(frame => finding.flow == null ? make("span", { class: "frame" }, String(frame))
            : make("a", { class: "frame", href: `#${finding.flow}/${frame}` }, String(frame)));
        const flow = isLinked && finding.flow != null ? make("a", { class: "flow", href: "#" + finding.flow }, "#" + finding.flow) : null;
        const text = make("p", {}, make("span", { class: "kind" }, finding.kind), flow ? " " : null, flow, " ", finding.text);
        const cost = finding.cost_nanos > 0 ? make("span", { class: "cost", title: "time it cost" }, formatDuration(finding.cost_nanos)) : null;
        return make("li", { class: "s" + finding.severity }, make("div", { class: "head" }, text, cost),
            make("p", { class: "advice" }, finding.advice),
            frames.length ? make("p", { class: "frames" }, frames.length === 1 ? "frame " : "frames ", ...frames) : null);
    });
}

/* The columns of the table: heading, value to sort by, text, tone. */
const COLUMNS = [
    ["#", c => c.flow, c => "#" + c.flow],
    ["ends", c => c.ends[0].text + c.ends[1].text, c => c.ends[0].text + " ↔ " + c.ends[1].text],
    ["service", c => c.service, c => c.service],
    ["MTU", c => c.mtu || 0, c => c.mtu ? String(c.mtu) : "–"],
    ["packets", c => c.row.packets, c => formatCount(c.row.packets)],
    ["messages", c => c.row.messages, c => formatCount(c.row.messages)],
    ["failed", c => c.row.failed, c => formatCount(c.row.failed), "bad"],
    ["goodput", goodput, c => c.nanos ? formatRate(goodput(c)) : "–"],
    ["retrans.", c => c.row.retransmissions, c => formatCount(c.row.retransmissions), "warn"],
    ["lost", c => c.row.lost, c => formatCount(c.row.lost), "bad"],
    ["NAK", c => c.row.naks, c => formatCount(c.row.naks), "bad"],
    ["RNR", c => c.row.rnr_naks, c => formatCount(c.row.rnr_naks), "warn"],
    ["p50", c => c.row.latency.p50, c => c.row.latency.count ? formatDuration(c.row.latency.p50) : "–"],
    ["p99", c => c.row.latency.p99, c => c.row.latency.count ? formatDuration(c.row.latency.p99) : "–"],
];
/* What a search for connections looks at; addresses end with a blank. */
function searchText(c) {
    const [a, b] = c.ends;
    return `#${c.flow} ${a.text} ${b.text} ${c.service} ${a.dscp == null ? "" : "dscp " + a.dscp}`.toLowerCase();
}
function goodput(connection) {
    return connection.nanos ? connection.row.goodput_bytes * 8e9 / connection.nanos : 0;
}

/* The sortable table of connections. Without a chosen column the worst come first. */
class ConnectionTable {
    constructor() {
        const worst = new Map();
        data.findings.forEach((finding, rank) => { if (!worst.has(finding.flow)) worst.set(finding.flow, rank); });
        this.rank = connection => worst.get(connection.flow) ?? Infinity;
        this.column = null;
        this.descending = true;
        this.limit = TABLE_ROWS;
        this.wanted = "";
        this.body = make("tbody");
        this.heads = COLUMNS.map(([name], index) => make("th", { scope: "col", class: this.tone(index) },
            make("button", { type: "button", onclick: () => this.sortBy(index) }, name)));
        this.status = make("p", { class: "hint", role: "status" });
        this.more = make("button", { type: "button", class: "quiet", onclick: () => { this.limit += 1000; this.fill(); } }, "More connections");
        this.input = data.connections.length < 10 ? null : make("input", { type: "search", class: "search", placeholder: "address, QP, service", "aria-label": "Filter the connections",
            oninput: event => { this.wanted = event.target.value.toLowerCase(); this.fill(); } });
        const table = make("table", { class: "connections" }, make("thead", {}, make("tr", {}, ...this.heads)), this.body);
        this.element = make("section", { class: "panel", id: "connections", tabindex: "-1" },
            make("div", { class: "panel-head" }, make("h2", {}, counted(data.connections.length, "connection")), this.input),
            make("div", { class: "scroll" }, table), this.status, this.more);
        this.fill();
    }
    tone(index) { return index === 1 || index === 2 ? "text" : "number"; }
    sortBy(index) {
        this.descending = this.column === index ? !this.descending : index > 2;
        this.column = index;
        this.heads.forEach((head, i) => i === index ? head.setAttribute("aria-sort", this.descending ? "descending" : "ascending") : head.removeAttribute("aria-sort"));
        this.fill();
    }
    sorted() {
        const wanted = this.wanted.split("&").map(part => part.trimStart()).filter(Boolean);
        const found = data.connections.filter(c => wanted.every(part => searchText(c).includes(part)));
        const trouble = c => c.row.failed + c.row.lost + c.row.retransmissions + c.row.rnr_naks;
        if (this.column === null) {
            return found.sort((a, b) => (this.rank(a) === this.rank(b) ? trouble(b) - trouble(a) || b.row.wire_bytes - a.row.wire_bytes : this.rank(a) - this.rank(b)));
        }
        const value = COLUMNS[this.column][1], sign = this.descending ? -1 : 1;
        return found.sort((a, b) => sign * (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0) || a.flow - b.flow);
    }
    /* Shows the connections that match, as if it had been typed. */
    search(text) {
        this.wanted = text.toLowerCase();
        if (this.input) this.input.value = text;
        this.fill();
        this.element.scrollIntoView({ block: "start" });
    }
    fill() {
        const sorted = this.sorted();
        this.body.replaceChildren(...sorted.slice(0, this.limit).map(connection => this.row(connection)));
        this.more.hidden = sorted.length <= this.limit;
        this.status.textContent = sorted.length > this.limit ? `The first ${formatCount(this.limit)} of ${formatCount(sorted.length)}.` : sorted.length === 0 ? "No connection matches." : "";
    }
    row(connection) {
        const cells = COLUMNS.map(([, value, text, tone], index) => {
            const quiet = tone && value(connection) === 0;
            const content = index === 0 ? make("a", { href: "#" + connection.flow }, text(connection)) : text(connection);
            return make("td", { class: [this.tone(index), quiet ? "zero" : tone || ""].join(" ") }, content);
        });
        return make("tr", { onclick: event => { if (!event.target.closest("a") && !getSelection().toString()) location.hash = "#" + connection.flow; } }, ...cells);
    }
}

function showOverview() {
    const { capture, totals } = data;
    const facts = [
        [formatCount(capture.packets), "RoCE packets"], [formatBytes(capture.bytes), "on the wire"], [formatDuration(capture.nanos), "duration"],
        [capture.nanos ? formatRate(capture.bytes * 8e9 / capture.nanos) : null, "throughput"], [formatCount(data.connections.length), "connections"],
        [formatCount(totals.messages), "messages"], [formatCount(totals.failed), "failed", totals.failed ? "bad" : ""],
        [formatCount(totals.retransmissions), "retransmissions", totals.retransmissions ? "warn" : ""], [formatCount(totals.lost), "lost", totals.lost ? "bad" : ""],
        [formatCount(totals.naks) + " / " + formatCount(totals.rnr_naks), "NAK / RNR", totals.naks ? "bad" : totals.rnr_naks ? "warn" : ""],
    ];
    const findings = make("section", { class: "panel", id: "findings" }, make("h2", {}, data.findings.length ? counted(data.findings.length, "finding") : "No findings"),
        data.findings.length ? findingList(data.findings, true, 8) : make("p", { class: "hint" }, "Nothing in this capture is worth a finding at the thresholds it was read with."));
    const limits = data.beyond_limits;
    const beyond = limits.packets + limits.connections + limits.messages > 0 ? make("p", { class: "notice" },
        `Beyond the limits of the analysis, and not in these figures: ${counted(limits.packets, "packet")}, ${counted(limits.connections, "connection")}, ${counted(limits.messages, "message")}.`) : null;
    const kind = capture.kind.map(sentence => make("p", { class: "notice kind" }, sentence));
    const table = new ConnectionTable(), search = text => table.search(text);
    const matrix = data.matrix.hosts.length >= MATRIX_HOSTS_MIN ? new HostMatrixPanel(data.matrix, search).element : null;
    main.replaceChildren(...[make("h1", { class: "sr" }, "Overview"), ...kind, factList(facts), beyond, outstandingPanel(data.groups, search),
        matrix, pairsPanel(data.pairs, search), kindsPanel(data.groups), findings, table.element].filter(Boolean));
}

/* "#3" is connection 3, "#3/1234" frame 1234 of it, anything else the overview. */
function route() {
    const [, flow, frame] = location.hash.match(/^#(\d+)(?:\/(\d+))?$/) || [];
    const connection = flow && byFlow.get(Number(flow));
    const frames = frame ? [Number(frame)] : null;
    if (connection && view && view.connection === connection) {
        if (frames && view.columns) view.showFrames(frames);
        return;
    }
    if (view) view.destroy();
    view = null;
    if (connection) view = new ConnectionView(main, connection, data, frames); else showOverview();
    scrollTo(0, 0);
}

/* The line of what is under the cursor. */
function showTip(u, point, lines) {
    tip.replaceChildren(...lines.map((text, i) => make("div", { class: i ? "" : "tip-head" }, text)));
    tip.hidden = false;
    const box = u.over.getBoundingClientRect(), size = tip.getBoundingClientRect();
    const x = box.left + u.cursor.left, y = box.top + u.cursor.top;
    const left = x + 16 + size.width < innerWidth ? x + 16 : Math.max(4, x - 16 - size.width);
    const top = y + 16 + size.height < innerHeight ? y + 16 : Math.max(4, y - 16 - size.height);
    tip.style.transform = `translate(${Math.round(Math.max(4, Math.min(left, innerWidth - size.width - 4)))}px, ${Math.round(top)}px)`;
}
function hideTip() { tip.hidden = true; }

function setTheme(isDark) {
    document.documentElement.dataset.theme = isDark ? "dark" : "light";
    document.getElementById("theme").setAttribute("aria-pressed", String(isDark));
    if (view) view.recolor();
}
const toggleTheme = () => setTheme(document.documentElement.dataset.theme !== "dark");

document.getElementById("theme").addEventListener("click", toggleTheme);
const preference = matchMedia("(prefers-color-scheme: dark)");
preference.addEventListener("change", () => setTheme(preference.matches));
setTheme(preference.matches);

addEventListener("hashchange", route);
addEventListener("keydown", event => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input:not([type=radio]), .ladder-scroll")) return;
    if (event.target.matches("input") && event.key.startsWith("Arrow")) return;
    if (event.key === "Escape") { if (view) location.hash = "#"; }
    else if (event.key === "t") toggleTheme();
    else if (view && view.key(event.key)) event.preventDefault();
});
document.addEventListener("mouseover", event => { if (!event.target.closest(".u-over")) hideTip(); });

/* Nearly all of the page is in its scripts and data. */
function pageSize() { return [...document.scripts].reduce((sum, script) => sum + script.textContent.length, 0); }

document.getElementById("files").textContent = data.capture.files.map(file => file.name).join(", ") + " · " + formatDate(data.capture.start);
document.getElementById("foot").textContent = `roce ${data.version} · ${formatBytes(pageSize())} · this page holds at most ` +
    `${formatCount(data.items_max[0])} packets and messages of a connection and ${formatCount(data.items_max[1])} in all, one by one; no network access`;
route();
