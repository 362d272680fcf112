"use strict";
(() => {
  const { element, Board } = Curves;
  const asked = new URLSearchParams(location.search);
  const token = asked.get("token") || "";
  const run = asked.get("run") || "";
  const at = (id) => document.getElementById(id);
  const main = at("main");
  const isList = document.documentElement.dataset.kind === "list";

  const address = (path, more = {}) => `${path}?${new URLSearchParams({ token, ...(run ? { run } : {}), ...more })}`;

  const section = (title, ...children) => element("section", {}, element("h2", {}, title), ...children);

  /* Called with each state; the browser connects again by itself. */
  const follow = (path, take) => {
    const source = new EventSource(address(path));
    source.onmessage = (message) => { at("lost").hidden = true; take(JSON.parse(message.data)); };
    source.onerror = () => { at("lost").hidden = false; };
  };

  const setState = (state, tone) => {
    at("state").textContent = state;
    at("state").className = `badge ${tone}`;
    at("head").className = tone;
  };

  const setFacts = (facts) => {
    at("facts").replaceChildren(...Object.entries(facts).filter(([, value]) => value).map(([name, value]) =>
      element("div", {}, element("dt", {}, name), element("dd", {}, value))));
  };

  const clock = (time) => {
    const date = new Date(time);
    return Number.isNaN(date.getTime()) ? "" : date.toLocaleTimeString([], { hour12: false });
  };

  /* A cell for each second, the newest at the right; empty where the rank made no step. */
  const lane = (counts, most) => element("span", {
    class: "lane", role: "img", "aria-label": `${counts.filter((count) => count > 0).length} of ${counts.length} seconds with a step`,
  }, ...counts.map((count) => element("i", { style: `opacity: ${count ? 0.25 + 0.75 * (count / most) : 0}` })));

  const showRun = () => {
    const boardRoot = element("div");
    const board = new Board(boardRoot, { onRange: () => fetchCurves(), onChosen: () => fetchCurves() });
    const events = element("ol", { class: "events", tabindex: "0", "aria-label": "Events, the newest first" });
    const leftOut = element("p", { class: "small" });
    const ranks = element("tbody");
    const ranksSection = section("Ranks", element("div", { class: "scroll" }, element("table", { class: "runs" },
      element("thead", {}, element("tr", {}, ...["rank", "step", "step time", "last step", "steps in each of the last 60 s"].map((name) => element("th", { scope: "col" }, name)))), ranks)));
    const stacks = element("div");
    const stacksSection = section("Stacks of a hang", stacks);
    const logTitle = element("p", { class: "small" });
    const log = element("pre", { class: "log", tabindex: "0" });
    const logSection = section("Last lines of the script", logTitle, log);
    main.append(section("Curves", boardRoot), ranksSection, section("Events", leftOut, events), stacksSection, logSection);

    let rows = -1;
    let isFetching = false;
    let again = false;
    let known = "";
    let waits = null;

    /* One request at a time, and no more often than the server needs for ten of them. */
    const fetchCurves = async () => {
      if (isFetching) { again = true; return; }
      isFetching = true;
      clearTimeout(waits);
      const begun = performance.now();
      try {
        const more = {};
        if (board.wanted) [more.from, more.to] = board.wanted;
        if (board.data.panels.length) more.names = JSON.stringify(board.names());
        const answer = await fetch(address("/api/curves", more));
        if (answer.ok) board.update(await answer.json());
      } catch { /* the connection is lost: the stream says so, and the next state asks again */ }
      isFetching = false;
      if (again) { again = false; waits = setTimeout(fetchCurves, Math.min(30000, 10 * (performance.now() - begun))); }
    };

    const take = (state) => {
      at("name").textContent = state.title;
      document.title = `${state.state} · ${state.title}`;
      setState(state.state, state.tone);
      const attempt = state.attempt > 1 ? { attempt: String(state.attempt) } : {};
      setFacts({ ...state.facts, ...attempt });
      at("first").replaceChildren(...[...state.shortfalls, ...state.first_lines].map((line) => element("li", {}, line)));
      if (state.state !== known) {
        known = state.state;
        at("said").textContent = `${state.title}: ${state.state}${state.facts.step ? `, step ${state.facts.step}` : ""}`;
      }
      leftOut.textContent = state.events_left_out ? `${state.events_left_out} earlier ones are in the report.` : "";
      leftOut.hidden = !state.events_left_out;
      events.replaceChildren(...state.events.slice().reverse().map((event) => element("li", { class: event.tone },
        element("time", {}, clock(event.time)),
        event.step === null ? element("span") : element("button", { type: "button", title: "Show these steps", onclick: () => board.show(event.step - 100, event.step + 100) }, `step ${event.step}`),
        element("span", { class: "what" }, event.text))));
      ranksSection.hidden = !state.ranks.length;
      ranks.replaceChildren(...state.ranks.map((one) => element("tr", {},
        ...[one.rank, one.step, one.step_ms === null ? "–" : `${one.step_ms} ms`, state.ended ? "–" : `${one.ago_s} s ago`].map((cell) => element("td", {}, String(cell))),
        element("td", {}, lane(one.lane, Math.max(1, ...state.ranks.flatMap((other) => other.lane)))))));
      stacksSection.hidden = !state.stacks.length;
      stacks.replaceChildren(...state.stacks.map((stack) => element("details", {}, element("summary", {}, stack.title), element("pre", {}, stack.text))));
      logSection.hidden = !state.log;
      if (state.log && log.textContent !== state.log.text) {
        const wasAtEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 8;
        logTitle.textContent = state.log.title;
        log.textContent = state.log.text;
        if (wasAtEnd) log.scrollTop = log.scrollHeight;
      }
      if (state.rows !== rows) { rows = state.rows; fetchCurves(); }
    };
    follow("/api/events", take);
  };

  const showList = () => {
    const body = element("tbody");
    const none = element("p", { class: "none" }, "No run yet: start one with supervisor run train.py");
    const names = ["run", "verdict", "step", "loss", "attempts", "treated", "script"];
    main.append(section("Runs", none, element("div", { class: "scroll" }, element("table", { class: "runs" },
      element("thead", {}, element("tr", {}, ...names.map((name) => element("th", { scope: "col" }, name)))), body))));
    follow("/api/runs/events", (state) => {
      at("name").textContent = state.title;
      document.title = `runs · ${state.title}`;
      const running = state.runs.filter((one) => one.state === "running").length;
      setState(`${running} running of ${state.runs.length}`, "info");
      none.hidden = Boolean(state.runs.length);
      body.replaceChildren(...state.runs.map((one) => element("tr", {},
        element("td", {}, element("a", { href: `/?${new URLSearchParams({ token, run: one.name })}` }, one.name)),
        ...[one.verdict, one.last_step ?? "–", one.last_loss === null ? "–" : Number(one.last_loss).toPrecision(4),
          one.attempts, one.treatments || "–", one.script].map((cell) => element("td", {}, String(cell))))));
    });
  };

  if (isList) showList(); else showRun();
})();
