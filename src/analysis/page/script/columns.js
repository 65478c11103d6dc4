/* The packets of a connection: unpacks what columns.rs wrote. Times are nanoseconds since the capture began. */

const ROLE = { request: 0, ack: 1, response: 2, nak: 3, rnr: 4, cnp: 5, management: 6 };
const FLAG = {
    sender: 1, duplicate: 1 << 7, reordered: 1 << 8, ce: 1 << 9, corrupt: 1 << 10, ackRequest: 1 << 11,
    aeth: 1 << 12, reth: 1 << 13,
    /* Set here, from the losses. */
    lost: 1 << 16, missing: 1 << 17,
};
const roleOf = flags => (flags >> 1) & 7;
const causeOf = flags => (flags >> 4) & 7;
const senderOf = flags => flags & FLAG.sender;
/* The end whose PSN space a packet belongs to. */
const requesterOf = flags => roleOf(flags) === ROLE.request || roleOf(flags) === ROLE.management ? senderOf(flags) : 1 - senderOf(flags);

/* Reads variable-length numbers one after the other. */
class NumberReader {
    constructor(bytes) {
        this.bytes = bytes;
        this.at = 0;
    }
    number() {
        let value = 0, scale = 1;
        for (;;) {
            const byte = this.bytes[this.at++];
            value += (byte & 0x7f) * scale;
            if (byte < 0x80) return value;
            scale *= 128;
        }
    }
    difference() {
        const value = this.number();
        return value % 2 ? -(value + 1) / 2 : value / 2;
    }
    column(count, Kind) {
        const out = new Kind(count);
        for (let i = 0; i < count; i++) out[i] = this.number();
        return out;
    }
    deltas(count) {
        const out = new Float64Array(count);
        for (let i = 0, value = 0; i < count; i++) out[i] = value += this.difference();
        return out;
    }
}

async function inflate(text) {
    const packed = Uint8Array.from(atob(text), c => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
}

/* The packets, losses, messages and rates of connection `flow`. */
async function unpack(flow) {
    const element = document.getElementById("packets-" + flow);
    const reader = new NumberReader(await inflate(element.textContent));
    const count = reader.number(), lossCount = reader.number(), messageCount = reader.number();
    const packets = readPackets(reader, count);
    const losses = readLosses(reader, lossCount);
    const messages = readMessages(reader, messageCount);
    return { packets: withLosses(packets, losses), losses, messages, series: readSeries(reader) };
}

function readPackets(reader, count) {
    const packets = {
        count,
        time: reader.deltas(count),
        frame: reader.deltas(count),
        flags: reader.column(count, Uint32Array),
        opcode: reader.column(count, Uint8Array),
        sequence: new Float64Array(count),
        extra: new Float64Array(count),
        syndrome: new Uint8Array(count),
        /* Where a packet was lost: an index into the losses and one. */
        loss: new Uint32Array(count),
    };
    const last = [0, 0];
    for (let i = 0; i < count; i++) {
        packets.sequence[i] = last[requesterOf(packets.flags[i])] += reader.difference();
    }
    packets.payload = reader.column(count, Float64Array);
    packets.wire = reader.column(count, Float64Array);
    for (let i = 0; i < count; i++) packets.wire[i] += packets.payload[i];
    for (let i = 0; i < count; i++) {
        if (packets.flags[i] & (FLAG.aeth | FLAG.reth)) packets.extra[i] = reader.number();
    }
    for (let i = 0; i < count; i++) if (packets.flags[i] & FLAG.aeth) packets.syndrome[i] = reader.number();
    return packets;
}

function readLosses(reader, count) {
    return {
        count, time: reader.deltas(count), sequence: reader.deltas(count), frame: reader.deltas(count),
        proof: reader.deltas(count), flags: reader.column(count, Uint8Array),
    };
}

function readMessages(reader, count) {
    return {
        count, end: reader.deltas(count), latency: reader.column(count, Float64Array),
        firstFrame: reader.deltas(count), endFrame: reader.deltas(count), bytes: reader.column(count, Float64Array),
        operation: reader.column(count, Uint8Array), flags: reader.column(count, Uint8Array),
    };
}

function readSeries(reader) {
    const count = reader.number();
    if (count === 0) return null;
    const start = reader.difference(), interval = reader.number();
    return { start, interval, bytes: [reader.column(count, Float64Array), reader.column(count, Float64Array)] };
}

/* The first index whose value is not below `value`. */
function lowerBound(sorted, value) {
    let low = 0, high = sorted.length;
    while (low < high) {
        const middle = (low + high) >> 1;
        if (sorted[middle] < value) low = middle + 1; else high = middle;
    }
    return low;
}

/* Marks the packets that were lost, and puts those that the capture point never saw where they belong. */
function withLosses(packets, losses) {
    const byFrame = new Map();
    for (let l = 0; l < losses.count; l++) if (losses.frame[l] > 0) byFrame.set(losses.frame[l], l);
    if (byFrame.size > 0) {
        for (let i = 0; i < packets.count; i++) {
            const loss = byFrame.get(packets.frame[i]);
            if (loss === undefined) continue;
            packets.flags[i] |= FLAG.lost;
            packets.loss[i] = loss + 1;
        }
    }
    const missing = [];
    for (let l = 0; l < losses.count; l++) {
        if (losses.frame[l] === 0) missing.push({ loss: l, before: placeOf(packets, losses, l) });
    }
    return missing.length > 0 ? insertMissing(packets, losses, missing) : packets;
}

/* The index before which a packet that was never captured belongs: where its sender's later ones begin. */
function placeOf(packets, losses, l) {
    const isRequest = (losses.flags[l] & 2) !== 0, sender = losses.flags[l] & 1;
    let place = lowerBound(packets.time, losses.time[l]);
    for (let i = place - 1, steps = 0; i >= 0 && steps < 20000; i--, steps++) {
        const flags = packets.flags[i];
        if (senderOf(flags) !== sender || (roleOf(flags) === ROLE.request) !== isRequest) continue;
        if (packets.sequence[i] < losses.sequence[l]) break;
        place = i;
    }
    return place;
}

function insertMissing(packets, losses, missing) {
    missing.sort((a, b) => a.before - b.before || losses.sequence[a.loss] - losses.sequence[b.loss]);
    const count = packets.count + missing.length, out = { count };
    for (const [name, column] of Object.entries(packets)) {
        if (name !== "count") out[name] = new column.constructor(count);
    }
    let from = 0, to = 0;
    const copy = end => {
        for (const [name, column] of Object.entries(packets)) {
            if (name !== "count") out[name].set(column.subarray(from, end), to);
        }
        to += end - from;
        from = end;
    };
    for (const { loss, before } of missing) {
        copy(before);
        const isRequest = (losses.flags[loss] & 2) !== 0;
        const role = isRequest ? ROLE.request : ROLE.response;
        out.time[to] = before < packets.count ? packets.time[before] : losses.time[loss];
        out.sequence[to] = losses.sequence[loss];
        out.flags[to] = (losses.flags[loss] & 1) | (role << 1) | FLAG.lost | FLAG.missing;
        out.loss[to] = loss + 1;
        to++;
    }
    copy(packets.count);
    return out;
}
