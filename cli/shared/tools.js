"use strict";
// What the pages share: tools that draw, format, explain and lay out.
const data = JSON.parse(document.getElementById("data").textContent);
const hide = (id) => { document.getElementById(id).hidden = true; };

// Three digits are as many as the figures deserve.
const round = (value, digits = 3) => String(Number(value.toPrecision(digits)));
const formatCount = (count) => count.toLocaleString("en-US");
const formatPercent = (share) => (100 * share).toFixed(1) + " %";

function formatSeconds(seconds) {
  if (Math.abs(seconds) >= 1) return round(seconds) + " s";
  if (Math.abs(seconds) >= 1e-3) return round(seconds * 1e3) + " ms";
  return round(seconds * 1e6) + " \u00b5s";
}

function formatRate(rate) {
  if (rate >= 1e9) return round(rate / 1e9) + " G";
  if (rate >= 1e6) return round(rate / 1e6) + " M";
  if (rate >= 1e4) return round(rate / 1e3) + " k";
  return round(rate);
}

// Adds an element to a picture.
function draw(parent, name, attributes = {}, text = "") {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.textContent = text;
  return parent.appendChild(element);
}

// An empty picture in the place of the one before.
function canvas(id, height) {
  const box = document.getElementById(id);
  const width = Math.max(280, box.clientWidth);
  box.replaceChildren();
  return { svg: draw(box, "svg", { viewBox: `0 0 ${width} ${height}`, role: "img" }), width, height };
}

// Functions that map the values of a domain to the pixels of a range.
function linear(domain, range) {
  const pixels = (range[1] - range[0]) / (domain[1] - domain[0] || 1);
  return Object.assign((value) => range[0] + (value - domain[0]) * pixels, { domain, range });
}
function logarithmic(domain, range) {
  const scale = linear(domain.map(Math.log), range);
  return Object.assign((value) => scale(Math.log(value)), { domain, range });
}

// The distance of about `count` ticks: 1, 2 or 5 times a power of ten.
function tickStep(span, count) {
  const power = 10 ** Math.floor(Math.log10(span / count));
  const steps = span / count / power;
  return power * (steps >= 7 ? 10 : steps >= 3.2 ? 5 : steps >= 1.4 ? 2 : 1);
}
function ticksOf(scale, count) {
  const [low, high] = scale.domain;
  if (!(high > low)) return [low];
  const step = tickStep(high - low, count);
  const ticks = [];
  for (let i = Math.ceil(low / step); i * step <= high; ++i) ticks.push(i * step);
  return ticks;
}
const ticksFor = (width) => Math.max(2, Math.floor(width / 95));

// The ticks of an axis of seconds share the unit that fits the largest.
function timeFormat(scale) {
  const [low, high] = scale.domain;
  const span = Math.max(Math.abs(low), Math.abs(high));
  const step = Math.abs(high - low) / 6;
  const [unit, factor] = span >= 1 && step >= 1e-3 ? ["s", 1] : span >= 1e-3 ? ["ms", 1e3] : ["\u00b5s", 1e6];
  return (value) => round(value * factor, 6) + " " + unit;
}

// An axis below the picture, at `y`.
function axisBelow(svg, y, scale, ticks, format) {
  const axis = draw(svg, "g", { class: "axis", transform: `translate(0,${y})` });
  draw(axis, "path", { d: `M${scale.range[0]},6V0H${scale.range[1]}V6`, fill: "none" });
  for (const tick of ticks) {
    draw(axis, "line", { x1: scale(tick), x2: scale(tick), y2: 6 });
    draw(axis, "text", { x: scale(tick), y: 17, "text-anchor": "middle" }, format(tick));
  }
}
// Lines from `left` to `right`, with their values in front of them.
function gridLines(svg, left, right, scale, ticks, format) {
  const grid = draw(svg, "g", { class: "axis grid" });
  for (const tick of ticks) {
    draw(grid, "line", { x1: left, x2: right, y1: scale(tick), y2: scale(tick) });
    draw(grid, "text", { x: left - 3, y: scale(tick) + 4, "text-anchor": "end" }, format(tick));
  }
}

const tip = document.getElementById("tip");
function showTip(event, text) {
  tip.textContent = text;
  tip.hidden = false;
  const left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8);
  const below = event.clientY + 18;
  const top = below + tip.offsetHeight > window.innerHeight ? event.clientY - tip.offsetHeight - 10 : below;
  tip.style.left = Math.max(8, left) + "px";
  tip.style.top = top + "px";
}
// Shows what `text` returns while the mouse is on the mark, or if it is tapped.
function explain(mark, text) {
  for (const kind of ["mousemove", "click"]) mark.addEventListener(kind, (event) => showTip(event, text()));
  mark.addEventListener("mouseleave", () => { tip.hidden = true; });
}

function legend(id, entries) {
  document.getElementById(id).replaceChildren(...entries.map(([kind, name]) => {
    const item = document.createElement("span");
    item.append(document.createElement("i"), name);
    item.firstChild.className = kind;
    return item;
  }));
}
// Of those, the kinds that the picture shows.
const drawn = (picture, entries) => entries.filter(([kind]) => document.querySelector(`#${picture} .mark.${kind}`));

// Bars that overlap get lines of their own.
function stack(bars) {
  const ends = [];
  for (const bar of bars) {
    let line = ends.findIndex((end) => end <= bar.begin);
    if (line < 0) line = ends.length;
    ends[line] = bar.end;
    bar.line = line;
  }
  return Math.max(1, ends.length);
}

// Draws now, and again if the window's width changes.
function drawAtEachWidth(drawAll) {
  let width = 0;
  const redraw = () => {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    tip.hidden = true;
    drawAll();
  };
  window.addEventListener("resize", redraw);
  window.addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
  redraw();
}
