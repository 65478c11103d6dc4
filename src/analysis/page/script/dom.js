/* Builds elements. Text from the capture is only ever set as text. */

function make(name, attributes = {}, ...children) {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
        if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
        else if (value === true) element.setAttribute(key, "");
        else if (value !== false && value != null) element.setAttribute(key, value);
    }
    element.append(...children.filter(child => child != null));
    return element;
}

const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/* Runs `action` at most once a frame, however often it is asked for. */
function oncePerFrame(action) {
    let waiting = false;
    return () => {
        if (waiting) return;
        waiting = true;
        requestAnimationFrame(() => {
            waiting = false;
            action();
        });
    };
}
