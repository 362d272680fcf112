"use strict";
/* Draws the document of report/curves/curve_document.py with uPlot. Nothing in a document is ever
   read as HTML. Used by the report and by the live page. */
const Curves = (() => {
  const GROUPS = {
    treatment: ["treatment", "--plot-treatment"],
    rollback: ["rollback", "--plot-rollback"],
    exit: ["worker ended", "--plot-restart"],
    hang: ["hang", "--plot-restart"],
    corruption: ["corruption", "--plot-rollback"],
    alert: ["alert", "--plot-muted"],
  };
  const COLOURS = {
    loss: "--plot-loss", grad_norm: "--plot-gradient", risk: "--plot-risk", lr: "--plot-rate",
    applied_lr: "--plot-treatment", loss_scale: "--plot-scale",
    layer_norm: "--plot-loss", layer_max: "--plot-gradient", layer_mean: "--plot-rate",
  };
  const LABELS = {
    lr: "asked for", applied_lr: "applied", layer_norm: "norm", layer_max: "largest", layer_mean: "mean",
  };
  const KEYS = "Arrow keys move, + and − zoom, 0 shows all.";

  const element = (name, attributes = {}, ...children) => {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
      else if (value === true) made.setAttribute(key, "");
      else if (value !== false && value !== null) made.setAttribute(key, value);
    }
    made.append(...children);
    return made;
  };

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const shown = (value) => {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value);
    return size !== 0 && (size < 1e-3 || size >= 1e6) ? Number(value.toPrecision(4)).toExponential()
      : String(Number(value.toPrecision(5)));
  };

  /* An exponential mean over so many steps; steps may be apart by any number. */
  const smooth = (x, y, steps) => {
    let mean = null;
    return y.map((value, i) => {
      if (value === null) return null;
      const share = mean === null ? 1 : 1 - Math.exp(-(x[i] - x[i - 1] || 1) / steps);
      mean = mean === null ? value : mean + share * (value - mean);
      return mean;
    });
  };

  class Panel {
    constructor(board, about) {
      this.board = board;
      this.about = about;
      this.isLog = about.log;
      this.value = element("output", { class: "value" });
      this.keys = element("span", { class: "keys" });
      this.button = element("button", {
        type: "button", "aria-pressed": String(this.isLog), onclick: () => this.toggleLog(),
      }, "log");
      this.target = element("div", { "aria-hidden": "true" });
      this.figure = element("figure", {
        class: "panel", tabindex: "0", role: "group", onkeydown: (event) => board.key(event),
      }, element("figcaption", {}, element("b", {}, about.title), this.keys, this.value, this.button),
      this.target);
    }

    toggleLog() {
      this.isLog = !this.isLog;
      this.button.setAttribute("aria-pressed", String(this.isLog));
      this.draw();
    }

    /* [{label, colour, dashed, x, y, bad}] of each curve of each run */
    curves() {
      const { data } = this.board;
      const several = data.runs.length > 1;
      const found = [];
      for (const name of this.about.curves) {
        (data.curves[name] || []).forEach((points, run) => {
          if (!points.x.length && !points.bad.length) return;
          const own = COLOURS[name] || "--plot-loss";
          const label = [several ? data.runs[run] : "", LABELS[name] || ""].filter(Boolean).join(", ");
          found.push({
            ...points, label: label || this.about.title, dashed: several && name === "applied_lr",
            colour: several ? (run ? "--plot-treatment" : "--plot-loss") : own,
          });
        });
      }
      return found;
    }

    draw() {
      this.close();
      const curves = this.curves();
      this.figure.hidden = !curves.length;
      if (!curves.length) return;
      const { board } = this;
      const usable = (value) => (this.isLog && value <= 0 ? null : value);
      const tables = [];
      const series = [{}];
      for (const curve of curves) {
        const y = curve.y.map(usable);
        const stroke = colour(curve.colour);
        const dash = curve.dashed ? [6, 4] : undefined;
        if (board.smoothing > 0) {
          tables.push([curve.x, y, smooth(curve.x, y, board.smoothing)]);
          series.push({ stroke: stroke + "55", width: 1, points: { show: false }, spanGaps: true, dash });
          series.push({ stroke, width: 2, points: { show: false }, spanGaps: true, label: curve.label, dash });
        } else {
          tables.push([curve.x, y]);
          series.push({ stroke, width: 1.5, points: { show: curve.x.length < 3 }, spanGaps: true, label: curve.label, dash });
        }
      }
      const ink = { stroke: colour("--plot-muted"), grid: { stroke: colour("--plot-grid"), width: 1 }, ticks: { stroke: colour("--plot-grid"), width: 1 } };
      const data = tables.length > 1 ? uPlot.join(tables) : tables[0];
      this.plot = new uPlot({
        width: Math.max(200, this.target.clientWidth || board.root.clientWidth),
        height: ["loss", "grad_norm", "layers"].includes(this.about.name) ? 220 : 150,
        legend: { show: false },
        scales: {
          x: { time: false, auto: false },
          y: this.isLog ? { distr: 3 } : this.about.limits ? { auto: false, range: this.about.limits } : {},
        },
        axes: [
          { ...ink, size: 34, values: (_, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? String(tick) : "")) },
          { ...ink, size: 62, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : shown(tick))) },
        ],
        cursor: { sync: { key: board.sync.key }, drag: { x: true, y: false, setScale: false }, points: { size: 6 } },
        series,
        hooks: {
          draw: [(plot) => this.drawMarks(plot, curves)],
          setCursor: [(plot) => this.tell(plot, curves)],
          setSelect: [(plot) => {
            if (plot.select.width < 4) return;
            const from = plot.posToVal(plot.select.left, "x");
            const to = plot.posToVal(plot.select.left + plot.select.width, "x");
            plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
            board.show(from, to);
          }],
        },
      }, data, this.target);
      this.plot.over.addEventListener("dblclick", () => board.showAll());
      this.applyRange();
      this.describe(curves);
      this.tell(this.plot, curves);
    }

    applyRange() {
      const [min, max] = this.board.range();
      if (this.plot) this.plot.setScale("x", { min, max: max > min ? max : min + 1 });
    }

    drawMarks(plot, curves) {
      const { ctx } = plot;
      const { left, top, width, height } = plot.bbox;
      const ratio = window.devicePixelRatio || 1;
      const line = (step, name, dash, alpha) => {
        const at = Math.round(plot.valToPos(step, "x", true)) + 0.5;
        if (at < left || at > left + width) return;
        ctx.strokeStyle = colour(name); ctx.globalAlpha = alpha; ctx.lineWidth = ratio; ctx.setLineDash(dash);
        ctx.beginPath(); ctx.moveTo(at, top); ctx.lineTo(at, top + height); ctx.stroke();
      };
      ctx.save();
      for (const mark of this.board.visibleMarks()) {
        const isAlert = mark.group === "alert";
        line(mark.step, GROUPS[mark.group][1], isAlert ? [2 * ratio, 4 * ratio] : [5 * ratio, 3 * ratio], isAlert ? 0.5 : 0.85);
      }
      for (const { value } of this.about.lines || []) {
        const at = Math.round(plot.valToPos(value, "y", true)) + 0.5;
        ctx.strokeStyle = colour("--plot-muted"); ctx.globalAlpha = 0.7; ctx.lineWidth = ratio; ctx.setLineDash([2 * ratio, 3 * ratio]);
        ctx.beginPath(); ctx.moveTo(left, at); ctx.lineTo(left + width, at); ctx.stroke();
      }
      ctx.globalAlpha = 1; ctx.setLineDash([]); ctx.fillStyle = colour("--plot-risk");
      for (const { bad } of curves) {
        for (const step of bad) {
          const at = plot.valToPos(step, "x", true);
          if (at >= left && at <= left + width) ctx.fillRect(at - 2 * ratio, top, 4 * ratio, 6 * ratio);
        }
      }
      ctx.restore();
    }

    /* What is under the cursor; without one the newest values. */
    tell(plot, curves) {
      const index = plot.cursor.idx;
      const step = index === null || index === undefined ? null : plot.data[0][index];
      const said = curves.map((curve) => {
        let at = curve.x.length - 1;
        if (step !== null) at = curve.x.findLastIndex((x) => x <= step);
        const value = at < 0 ? "–" : shown(curve.y[at]);
        return curves.length > 1 ? `${curve.label} ${value}` : value;
      });
      const where = step === null ? "" : this.about.names ? ` in ${this.about.names[step]}` : ` at step ${step}`;
      const near = step === null ? null : this.board.markNear(step, plot);
      this.value.textContent = said.join(" · ") + where + (near ? ` · ${near.text}` : "");
    }

    describe(curves) {
      const said = curves.filter((curve) => curve.x.length).map((curve) => {
        let low = 0; let high = 0;
        curve.y.forEach((value, i) => { if (value < curve.y[low]) low = i; if (value > curve.y[high]) high = i; });
        const last = curve.x.length - 1;
        return `${curve.label}: ${shown(curve.y[last])} at step ${curve.x[last]}, `
          + `lowest ${shown(curve.y[low])} at step ${curve.x[low]}, highest ${shown(curve.y[high])} at step ${curve.x[high]}`;
      });
      const bad = curves.reduce((sum, curve) => sum + curve.bad.length, 0);
      if (bad) said.push(`not finite at ${bad} of the steps shown`);
      this.figure.setAttribute("aria-label", `${this.about.title}. ${said.join("; ")}. ${KEYS}`);
      this.keys.replaceChildren(...(curves.length > 1 ? curves.map((curve) => element("span", { class: "key" },
        element("i", { class: curve.dashed ? "dashed" : "", style: `border-color: var(${curve.colour})` }), curve.label)) : []));
    }

    close() {
      if (this.plot) this.plot.destroy();
      this.plot = null;
    }
  }

  /* All panels with their tools. `onRange(from, to)` and `onChosen(names)` are told what the reader
     wants to see; the live page fetches it. */
  class Board {
    constructor(root, { onRange = () => {}, onChosen = () => {}, sync = "board" } = {}) {
      this.root = root;
      this.onRange = onRange;
      this.onChosen = onChosen;
      this.data = { runs: [], panels: [], curves: {}, marks: [], steps: null };
      this.sync = uPlot.sync(sync);
      this.panels = new Map();
      this.chosen = new Map();
      this.hiddenGroups = new Set(["alert"]);
      this.smoothing = 0;
      this.wanted = null;
      this.from = element("input", { type: "number", min: "0", onchange: () => this.typed() });
      this.to = element("input", { type: "number", min: "0", onchange: () => this.typed() });
      this.slider = element("input", { type: "range", min: "0", max: "12", value: "0", "aria-valuetext": "none", oninput: () => this.slide() });
      this.sliderValue = element("output", {}, "none");
      this.groups = element("span", { class: "tools", role: "group", "aria-label": "Marks" });
      this.choices = element("div", {});
      this.more = element("details", {}, element("summary", {}, "Choose values"), this.choices);
      this.list = element("div", { class: "list" });
      this.empty = element("p", { class: "none" }, "No step yet.");
      root.classList.add("board");
      root.replaceChildren(
        element("div", { class: "tools" },
          element("label", {}, "Smooth over", this.slider, this.sliderValue),
          element("label", {}, "Steps", this.from),
          element("label", {}, "to", this.to),
          element("button", { type: "button", onclick: () => this.showAll() }, "All"),
          this.groups),
        this.more, this.empty, this.list);
      new ResizeObserver(() => this.resize()).observe(this.list);
      matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    }

    update(data) {
      this.data = data;
      for (const about of data.panels) {
        if (!this.chosen.has(about.name)) this.chosen.set(about.name, about.shown);
        const panel = this.panels.get(about.name);
        if (panel) panel.about = about;
        else this.panels.set(about.name, new Panel(this, about));
      }
      this.arrange();
      this.draw();
    }

    arrange() {
      const names = this.data.panels.map((about) => about.name).join("\n");
      const groups = [...new Set(this.data.marks.map((mark) => mark.group))].filter((group) => GROUPS[group]);
      if (names !== this.namesDrawn) {
        this.namesDrawn = names;
        this.choices.replaceChildren(...this.data.panels.map((about) => element("label", {},
          element("input", { type: "checkbox", checked: this.chosen.get(about.name), onchange: (event) => this.choose(about.name, event.target.checked) }), about.title)));
      }
      if (groups.join() !== this.groupsDrawn) {
        this.groupsDrawn = groups.join();
        this.groups.replaceChildren(...groups.map((group) => element("label", { class: "key" },
          element("input", { type: "checkbox", checked: !this.hiddenGroups.has(group), onchange: (event) => this.chooseGroup(group, event.target.checked) }),
          element("i", { class: "dashed", style: `border-color: var(${GROUPS[group][1]})` }), GROUPS[group][0])));
      }
      const open = this.data.panels.filter((about) => this.chosen.get(about.name)).map((about) => this.panels.get(about.name).figure);
      if (open.length !== this.list.children.length || open.some((figure, i) => this.list.children[i] !== figure)) this.list.replaceChildren(...open);
      this.empty.hidden = Boolean(this.data.panels.length);
    }

    draw() {
      for (const panel of this.panels.values()) {
        if (this.chosen.get(panel.about.name)) panel.draw(); else panel.close();
      }
      const [from, to] = this.range();
      if (document.activeElement !== this.from) this.from.value = String(Math.round(from));
      if (document.activeElement !== this.to) this.to.value = String(Math.round(to));
    }

    names() {
      return this.data.panels.filter((about) => this.chosen.get(about.name)).flatMap((about) => about.curves);
    }

    choose(name, isChosen) {
      this.chosen.set(name, isChosen);
      this.arrange();
      this.draw();
      this.onChosen(this.names());
    }

    chooseGroup(group, isShown) {
      if (isShown) this.hiddenGroups.delete(group); else this.hiddenGroups.add(group);
      this.draw();
    }

    slide() {
      const power = Number(this.slider.value);
      this.smoothing = power ? 2 ** power : 0;
      this.sliderValue.textContent = power ? `${this.smoothing} steps` : "none";
      this.slider.setAttribute("aria-valuetext", this.sliderValue.textContent);
      this.draw();
    }

    visibleMarks() {
      return this.data.marks.filter((mark) => GROUPS[mark.group] && !this.hiddenGroups.has(mark.group));
    }

    markNear(step, plot) {
      const [from, to] = this.range();
      const reach = (6 / Math.max(1, plot.over.clientWidth)) * (to - from);
      return this.visibleMarks().find((mark) => Math.abs(mark.step - step) <= reach);
    }

    range() {
      return this.wanted || this.data.steps || [0, 1];
    }

    show(from, to) {
      if (!this.data.steps) return;
      const [first, last] = this.data.steps;
      const low = Math.max(first, Math.floor(from));
      const high = Math.min(last, Math.ceil(to));
      this.wanted = high > low ? [low, high] : null;
      if (this.wanted && low === first && high === last) this.wanted = null;
      this.draw();
      this.onRange(this.wanted);
    }

    showAll() {
      this.wanted = null;
      this.draw();
      this.onRange(null);
    }

    typed() {
      this.show(Number(this.from.value), Number(this.to.value));
    }

    key(event) {
      const [from, to] = this.range();
      const span = to - from;
      const moves = {
        ArrowLeft: [from - span / 4, to - span / 4], ArrowRight: [from + span / 4, to + span / 4],
        "+": [from + span / 4, to - span / 4], "=": [from + span / 4, to - span / 4],
        "-": [from - span / 2, to + span / 2],
      };
      if (event.target.tagName === "BUTTON") return;
      if (event.key === "0") this.showAll();
      else if (moves[event.key] && this.data.steps) {
        const [first, last] = this.data.steps;
        let [low, high] = moves[event.key];
        if (low < first) { if (event.key === "ArrowLeft") high += first - low; low = first; }
        if (high > last) { if (event.key === "ArrowRight") low -= high - last; high = last; }
        this.show(low, high);
      } else return;
      event.preventDefault();
    }

    resize() {
      const width = this.list.clientWidth;
      if (!width || width === this.width) return;
      this.width = width;
      for (const { plot, target } of this.panels.values()) if (plot) plot.setSize({ width: target.clientWidth, height: plot.height });
    }
  }

  /* Draws all that a page has a place for; `layers` has layers in place of steps. */
  const show = (data, layers) => {
    const place = (id) => document.getElementById(id);
    new Board(place("board")).update(data);
    const own = data.panels.filter((about) => about.own).slice(0, 48);
    if (place("own")) new Board(place("own")).update({ ...data, panels: own.map((about) => ({ ...about, shown: true })) });
    if (place("layers")) new Board(place("layers"), { sync: "layers" }).update(layers);
  };

  return { Board, element, show };
})();
