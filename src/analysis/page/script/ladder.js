/* The ladder: the packets of the window, one a line, runs of equal ones folded. */

/* Lines that are made at once. */
const LADDER_ROWS = 250;
/* A silence that is marked is this many times the median time between packets, and at least so long. */
const SILENCE_TIMES = 100, SILENCE_MIN = 1e6;

class Ladder {
    constructor(connection, columns, data, choose) {
        this.connection = connection;
        this.packets = columns.packets;
        this.losses = columns.losses;
        this.data = data;
        this.silence = silenceOf(this.packets);
        this.body = make("tbody");
        this.status = make("p", { class: "hint" });
        this.more = make("button", { type: "button", class: "quiet", onclick: () => this.append() }, "More packets");
        const heads = ["time (s)", "Δ", "frame", "PSN", "len"].map(text => make("th", { scope: "col", class: "number" }, text));
        const [left, right] = connection.ends.map(end => end.text);
        const lane = make("th", { scope: "col", class: "lane" }, make("span", {}, left), make("span", {}, right));
        const table = make("table", { class: "ladder" }, make("thead", {}, make("tr", {}, ...heads, lane)), this.body);
        this.element = make("section", { class: "panel ladder-panel", "aria-label": "Ladder" },
            make("h3", {}, "Ladder"), this.status,
            make("div", { class: "ladder-scroll", tabindex: "0" }, table, this.more));
        this.body.addEventListener("click", event => {
            const row = event.target.closest("tr[data-index]");
            if (row) choose(Number(row.dataset.index));
        });
    }
    show(windowOfTime) {
        this.next = lowerBound(this.packets.time, windowOfTime.from * 1e9);
        this.end = lowerBound(this.packets.time, windowOfTime.to * 1e9);
        this.start = this.next;
        this.digits = windowOfTime.to - windowOfTime.from < 1e-3 ? 9 : 6;
        this.body.replaceChildren();
        this.append();
    }
    append() {
        const rows = [];
        while (this.next < this.end && rows.length < LADDER_ROWS) {
            const run = this.runFrom(this.next);
            rows.push(...this.silenceBefore(this.next), this.row(this.next));
            if (run > 3) {
                rows.push(this.fold(this.next + 1, run - 2), this.row(this.next + run - 1));
            } else {
                for (let i = 1; i < run; i++) rows.push(this.row(this.next + i));
            }
            this.next += run;
        }
        this.body.append(...rows);
        this.more.hidden = this.next >= this.end;
        const shown = this.next - this.start, total = this.end - this.start;
        this.status.textContent = total === 0 ? "No packets in this window."
            : shown === total ? counted(total, "packet") + " in this window."
                : "The first " + formatCount(shown) + " of " + counted(total, "packet") + " in this window. Zoom in to see others.";
    }
    /* How many packets from `i` on are alike: the same sender and opcode, nothing to remark, no silence between. */
    runFrom(i) {
        const { flags, opcode, time, payload } = this.packets, plain = ~(FLAG.ackRequest | FLAG.reth);
        let j = i + 1;
        while (j < this.end && (flags[j] & plain) === (flags[i] & plain) && opcode[j] === opcode[i] && payload[j] === payload[i]
            && !(flags[j] & (FLAG.aeth | FLAG.lost)) && time[j] - time[j - 1] < this.silence) j++;
        return j - i;
    }
    silenceBefore(i) {
        const gap = i > this.start ? this.packets.time[i] - this.packets.time[i - 1] : 0;
        if (gap < this.silence) return [];
        return [make("tr", { class: "silence" }, make("td", { colspan: "6" }, formatDuration(gap) + " of silence"))];
    }
    fold(first, count) {
        const psns = psnOf(this.packets.sequence[first]) + "–" + psnOf(this.packets.sequence[first + count - 1]);
        const text = "… " + formatCount(count) + " more " + packetName(this.packets, first, this.data) + ", PSN " + psns;
        return make("tr", { class: "fold" }, make("td", { colspan: "6" }, text));
    }
    row(i) {
        const { time, frame, flags, sequence, payload } = this.packets, kind = classOf(flags[i]);
        let before = i - 1;
        while (before >= 0 && flags[before] & FLAG.missing) before--;
        const delta = before >= 0 ? "+" + formatDuration(time[i] - time[before]) : "";
        const cell = text => make("td", { class: "number" }, text);
        const marks = packetMarks(this.packets, this.losses, i);
        const isMissing = (flags[i] & FLAG.missing) !== 0, hasPsn = roleOf(flags[i]) !== ROLE.cnp;
        const label = make("span", { class: "label" }, packetName(this.packets, i, this.data));
        const lane = make("td", { class: "lane " + (senderOf(flags[i]) ? "left" : "right") },
            make("span", { class: "shaft" }, label), marks.length ? make("span", { class: "marks" }, marks.join(", ")) : null);
        return make("tr", { "data-index": i, class: "k-" + CLASSES[kind].name },
            cell(isMissing ? "" : (time[i] / 1e9).toFixed(this.digits)), cell(isMissing ? "" : delta), cell(isMissing ? "–" : String(frame[i])),
            cell(hasPsn ? String(psnOf(sequence[i])) : ""), cell(isMissing ? "" : String(payload[i])), lane);
    }
    highlight(index, scroll) {
        this.body.querySelector(".current")?.classList.remove("current");
        const row = this.body.querySelector(`tr[data-index="${index}"]`);
        if (!row) return;
        row.classList.add("current");
        const box = row.closest(".ladder-scroll");
        if (scroll) box.scrollTop = row.offsetTop - box.clientHeight / 2;
    }
}

/* From which time between two packets on there is a silence. */
function silenceOf(packets) {
    const gaps = [], step = Math.max(1, Math.floor(packets.count / 2000));
    for (let i = step; i < packets.count; i += step) gaps.push(packets.time[i] - packets.time[i - 1]);
    gaps.sort((a, b) => a - b);
    return Math.max(SILENCE_MIN, SILENCE_TIMES * (gaps[gaps.length >> 1] || 0));
}
