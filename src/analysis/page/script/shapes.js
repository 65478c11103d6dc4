/* The marks of the plots: what a packet counts as, and how that is drawn. */

/* In the order in which they are drawn; the last are on top. */
const CLASSES = [
    { name: "request", label: "requests", glyph: "●", size: 3.5, shape: "dot" },
    { name: "response", label: "ACKs and responses", glyph: "●", size: 3.5, shape: "dot" },
    { name: "disorder", label: "duplicated or reordered", glyph: "○", size: 9, shape: "ring" },
    { name: "retransmission", label: "retransmissions", glyph: "▲", size: 8, shape: "up" },
    { name: "cnp", label: "CNPs", glyph: "▼", size: 9, shape: "down" },
    { name: "rnr", label: "RNR NAKs", glyph: "■", size: 8, shape: "square" },
    { name: "nak", label: "NAKs", glyph: "◆", size: 10, shape: "diamond" },
    { name: "corrupt", label: "bad ICRC", glyph: "✚", size: 10, shape: "plus" },
    { name: "lost", label: "lost", glyph: "✕", size: 9, shape: "cross" },
];
const CLASS = Object.fromEntries(CLASSES.map((one, index) => [one.name, index]));
const colorOf = index => css("--" + CLASSES[index].name);

/* What a packet counts as. */
function classOf(flags) {
    const role = roleOf(flags);
    if (flags & FLAG.lost) return CLASS.lost;
    if (flags & FLAG.corrupt) return CLASS.corrupt;
    if (role === ROLE.nak) return CLASS.nak;
    if (role === ROLE.rnr) return CLASS.rnr;
    if (role === ROLE.cnp) return CLASS.cnp;
    if (causeOf(flags)) return CLASS.retransmission;
    if (flags & (FLAG.duplicate | FLAG.reordered)) return CLASS.disorder;
    return role === ROLE.request || role === ROLE.management ? CLASS.request : CLASS.response;
}

const SHAPES = {
    dot(path, x, y, r) { path.rect(x - r, y - r, 2 * r, 2 * r); },
    square(path, x, y, r) { path.rect(x - r, y - r, 2 * r, 2 * r); },
    ring(path, x, y, r) { path.moveTo(x + r, y); path.arc(x, y, r, 0, 2 * Math.PI); },
    up(path, x, y, r) { polygon(path, [[x, y - r], [x + r, y + r * 0.8], [x - r, y + r * 0.8]]); },
    down(path, x, y, r) { polygon(path, [[x, y + r], [x + r, y - r * 0.8], [x - r, y - r * 0.8]]); },
    diamond(path, x, y, r) { polygon(path, [[x, y - r], [x + r, y], [x, y + r], [x - r, y]]); },
    plus(path, x, y, r) { line(path, x - r, y, x + r, y); line(path, x, y - r, x, y + r); },
    cross(path, x, y, r) { line(path, x - r, y - r, x + r, y + r); line(path, x - r, y + r, x + r, y - r); },
};
function polygon(path, corners) {
    corners.forEach(([x, y], i) => i ? path.lineTo(x, y) : path.moveTo(x, y));
    path.closePath();
}
function line(path, x0, y0, x1, y1) {
    path.moveTo(x0, y0);
    path.lineTo(x1, y1);
}

/* A builder of uPlot's points that draws a shape at each, `scale()` times its size. */
function shapePoints(shape, size, scale) {
    const isOpen = shape === "ring" || shape === "plus" || shape === "cross";
    return (u, series, first, last) => {
        const path = new Path2D(), clip = new Path2D(), r = size / 2 * scale() * devicePixelRatio;
        const { left, top, width, height } = u.bbox;
        clip.rect(left - r, top - r, width + 2 * r, height + 2 * r);
        const xs = u.data[0], ys = u.data[series], axis = u.series[series].scale;
        for (let i = first; i <= last; i++) {
            if (ys[i] != null) SHAPES[shape](path, u.valToPos(xs[i], "x", true), u.valToPos(ys[i], axis, true), r);
        }
        return { stroke: isOpen ? path : null, fill: isOpen ? null : path, clip, flags: 3 };
    };
}

/* A series of points for uPlot. */
const pointSeries = (label, shape, size, color, scale = () => 1) => ({
    label,
    stroke: color,
    paths: () => null,
    points: { show: true, size, width: 1.6, stroke: color, fill: color, paths: shapePoints(shape, size, scale) },
});
