/* Numbers and packets in words. */

function scaled(value, units, base = 1000) {
    let unit = 0;
    while (value >= base - 0.5 && unit + 1 < units.length) {
        value /= base;
        unit++;
    }
    const digits = unit === 0 ? 0 : value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
    return value.toFixed(digits) + " " + units[unit];
}
const formatDuration = nanos => scaled(nanos, ["ns", "µs", "ms", "s"]);
const formatBytes = bytes => scaled(bytes, ["B", "kB", "MB", "GB", "TB", "PB"]);
const formatRate = bits => scaled(bits, ["b/s", "kb/s", "Mb/s", "Gb/s", "Tb/s"]);
const formatCount = count => count.toLocaleString("en-US");
const counted = (count, noun) => formatCount(count) + " " + noun + (count === 1 ? "" : "s");
const hex = number => "0x" + number.toString(16);

/* A time since the capture began, with as many digits as a span of `span` nanoseconds needs. */
function formatTime(nanos, span = 0) {
    const digits = span > 0 ? Math.min(9, Math.max(3, Math.ceil(4 - Math.log10(span / 1e9)))) : 9;
    return (nanos / 1e9).toFixed(digits);
}

/* The instant at which the capture began, in UTC. */
function formatDate(nanosText) {
    const millis = Number(BigInt(nanosText) / 1000000n);
    const date = new Date(millis);
    return Number.isNaN(date.getTime()) ? "" : date.toISOString().replace("T", " ").replace("Z", " UTC");
}

const CAUSES = [null, "timeout", "sequence NAK", "implied NAK", "RNR", "spurious", "unexplained"];
const LOSS_PLACES = ["before the capture point", "after the capture point", "between two capture points"];
const OUTCOMES = ["completed", "refused", "RNR retries exceeded", "retries exceeded", "flushed", "in flight at the end", "incomplete"];

const psnOf = sequence => sequence % 0x1000000;

/* The opcode without its service, which the connection's heading tells. */
function shortOpcode(code, opcodes) {
    const name = opcodes[code];
    return name ? name.replace(/^(RC|UC|UD|RD|XRC)_/, "").replace(/^RDMA_/, "") : "opcode " + hex(code);
}

/* What a packet is, without who sent it. */
function packetName(packets, i, data) {
    const flags = packets.flags[i];
    if (flags & FLAG.missing) return roleOf(flags) === ROLE.request ? "request" : "response";
    if (roleOf(flags) === ROLE.nak || roleOf(flags) === ROLE.rnr) return data.syndromes[packets.syndrome[i] & 0x7f];
    if (roleOf(flags) === ROLE.ack) return "ACK";
    return shortOpcode(packets.opcode[i], data.opcodes);
}

/* What was wrong with a packet, in words; the most important first. */
function packetMarks(packets, losses, i) {
    const flags = packets.flags[i], marks = [];
    if (flags & FLAG.lost) {
        const loss = packets.loss[i] - 1, bits = losses.flags[loss];
        marks.push((bits & 4 ? "likely lost " : "lost ") + LOSS_PLACES[bits >> 3] + " (frame " + losses.proof[loss] + " shows it)");
    }
    if (causeOf(flags)) marks.push("retransmission (" + CAUSES[causeOf(flags)] + ")");
    if (flags & FLAG.duplicate) marks.push("duplicated by the network");
    if (flags & FLAG.reordered) marks.push("reordered");
    if (flags & FLAG.corrupt) marks.push("ICRC bad");
    if (flags & FLAG.ce) marks.push("CE");
    return marks;
}

/* The packet as a line. */
function packetLine(connection, packets, i, data) {
    const flags = packets.flags[i], sender = senderOf(flags);
    const from = connection.ends[sender], to = connection.ends[1 - sender];
    const words = [from.text, "→", to.text + ":"];
    words.push(flags & FLAG.missing ? "not captured" : data.opcodes[packets.opcode[i]] || hex(packets.opcode[i]));
    words.push("psn " + psnOf(packets.sequence[i]));
    if (flags & FLAG.ackRequest) words.push("ack-req");
    if (flags & FLAG.reth) words.push("dmalen " + packets.extra[i]);
    if (flags & FLAG.aeth) words.push(data.syndromes[packets.syndrome[i] & 0x7f], "msn=" + packets.extra[i]);
    if (!(flags & FLAG.missing)) words.push("len " + packets.payload[i]);
    return words.join(" ");
}
