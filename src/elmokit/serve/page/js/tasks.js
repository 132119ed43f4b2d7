// Tasks: a text -> the predictions of a trained task, coloured in the text.

import { lastOnly, later, lines, make, needsSpace, note } from "./panel.js";
import { ask } from "./server.js";

const HUE_STEP = 137.5; // degrees, the golden angle: hues of labels that follow one another are far apart, and none recurs
const TONES = ["very negative", "negative", "neutral", "positive", "very positive"]; // .tone-0 …
const TEXTS = "Maria Schmidt flew from Berlin to Rome to meet the directors of the World Bank.\nA warm, funny and wholly delightful film.\nThe plot is thin and the jokes are tired.";
const PASSAGE = "Maria Schmidt flew from Berlin to Rome. There she met the directors of the World Bank, who asked her to stay.";

// what each kind of task reads; `join` makes of the fields what is sent
const SENTENCES = { fields: [["text", "Sentences, one per line", TEXTS, 4]], inputs: ({ text }) => lines(text) };
const DOCUMENT = { fields: [["text", "A text", PASSAGE, 4]], inputs: ({ text }) => (text.trim() ? [text.trim()] : []) };
const READS = {
  entailment: {
    fields: [["premise", "Premise", "A man is playing a guitar on the stage.", 2], ["hypothesis", "Hypothesis", "Somebody makes music.", 2]],
    inputs: (values) => [values],
  },
  questions: {
    fields: [["context", "A passage", PASSAGE, 4], ["question", "A question about it", "Where did Maria Schmidt fly?", 2]],
    inputs: (values) => [values],
  },
  coreference: DOCUMENT,
  pronouns: DOCUMENT,
};

export function tasksPanel(section, info, changed) {
  const find = (selector) => section.querySelector(selector);
  const { task } = find("form").elements;
  const labels = new Map(); // label -> its colour { class, style }, the same for all answers

  task.append(...info.tasks.map((name) => make("option", { value: name, text: name })));

  const reads = () => READS[info.task_kinds[task.value]] ?? SENTENCES;
  const values = () => Object.fromEntries([...section.querySelectorAll(".fields textarea")].map((area) => [area.name, area.value]));

  function makeFields() {
    const kept = values();
    find(".fields").replaceChildren(
      ...reads().fields.map(([name, label, example, rows]) => {
        const area = make("textarea", { name, rows, spellcheck: "false", on: { input: typed } });
        area.value = kept[name] ?? example;
        return make("label", { text: label }, area);
      }),
    );
  }

  const predict = lastOnly(section, find(".message"), async (signal) => {
    const inputs = reads().inputs(values());
    if (inputs.length === 0) throw note("Enter a sentence.");
    const answers = await ask(`tasks/${encodeURIComponent(task.value)}`, { inputs }, signal);
    labels.clear();
    find(".answers").replaceChildren(...answers.map((answer) => make("li", {}, ...drawn(answer))));
    find(".results").hidden = false;
  });

  const typed = later(() => {
    predict();
    changed();
  });

  const colour = (label) => {
    if (!labels.has(label)) labels.set(label, toneOf(label) ?? { class: "hue", style: `--hue: ${((labels.size * HUE_STEP) % 360).toFixed(1)}` });
    return labels.get(label);
  };

  // Opinions have an order, which their colours show: by name, or 0 to 4 as the Stanford treebank counts them.
  function toneOf(label) {
    if (info.task_kinds[task.value] !== "sentiment") return null;
    const place = /^[0-4]$/.test(label) ? Number(label) : TONES.indexOf(label.replaceAll("_", " ").toLowerCase());
    return place < 0 ? null : { class: `tone-${place}` };
  }

  // The fields of a prediction tell its kind, whatever the name of the task.
  function drawn(answer) {
    if (answer.propositions) {
      const rows = answer.propositions.map(({ predicate, arguments: parts }) =>
        marked(answer.tokens, [...parts.map(({ role, start, end }) => ({ label: role, start, end })), { label: "predicate", start: predicate, end: predicate + 1 }]));
      return rows.length ? rows : [marked(answer.tokens, [])];
    }
    if (answer.clusters) {
      const spans = answer.clusters.flatMap((cluster, number) => cluster.map(({ start, end }) => ({ label: `entity ${number + 1}`, start, end })));
      return [marked(answer.tokens, spans)];
    }
    if (answer.pronouns) {
      const spans = answer.pronouns.map(({ start, end, refers_to: name }) => ({ label: name ? name.text : "no name", start, end }));
      return [marked(answer.tokens, spans)];
    }
    if (answer.spans) return [marked(answer.tokens, answer.spans)];
    if (answer.tags) return [marked(answer.tokens, answer.tags.map((label, place) => ({ label, start: place, end: place + 1 })))];
    if (answer.probabilities) return classified(answer);
    if (answer.answer !== undefined) {
      const { context, start, end } = answer;
      return [
        make("p", { class: "text" }, context.slice(0, start), make("mark", { ...colour("answer"), text: context.slice(start, end) }), context.slice(end)),
        make("p", { class: "soft", text: `${(100 * answer.probability).toFixed(0)}% sure` }),
      ];
    }
    return [make("pre", { text: JSON.stringify(answer, null, 1), tabindex: "0" })];
  }

  // Spans may lie in one another (coreference): the shorter one is drawn inside.
  function marked(tokens, spans) {
    const inOrder = [...spans].sort((a, b) => a.start - b.start || b.end - a.end);
    const text = make("p", { class: "text" });
    let next = 0;
    const fill = (parent, place, end) => {
      while (place < end) {
        if (place > 0 && needsSpace(tokens[place - 1], tokens[place])) parent.append(" ");
        const span = inOrder[next];
        if (span && span.start === place && span.end <= end) {
          next += 1;
          const mark = make("mark", colour(span.label));
          if (inOrder[next]?.start === place) fill(mark, place, span.end);
          else {
            mark.append(tokens[place]);
            fill(mark, place + 1, span.end);
          }
          mark.append(make("small", { text: span.label }));
          parent.append(mark);
          place = span.end;
        } else {
          while (inOrder[next] && inOrder[next].start <= place) next += 1;
          parent.append(tokens[place]);
          place += 1;
        }
      }
    };
    fill(text, 0, tokens.length);
    return text;
  }

  function classified({ label, probabilities, tokens, premise, hypothesis }) {
    const texts = tokens ? [tokens] : [premise, hypothesis];
    const shown = texts.map((words) => {
      const text = make("p", { ...colour(label), class: `text whole ${colour(label).class}` });
      for (const [place, token] of words.entries()) text.append(place > 0 && needsSpace(words[place - 1], token) ? " " : "", token);
      return text;
    });
    const rows = Object.entries(probabilities).map(([name, share]) =>
      make("li", {}, make("span", { ...colour(name), class: `label ${colour(name).class}`, text: name }),
        make("meter", { min: 0, max: 1, value: share, "aria-label": `${name}: ${(100 * share).toFixed(0)}%` }),
        make("span", { class: "number", text: `${(100 * share).toFixed(0)}%` })));
    return [...shown, make("ul", { class: "shares" }, ...rows)];
  }

  task.addEventListener("change", () => {
    makeFields();
    predict();
    changed();
  });
  find("form").addEventListener("submit", (event) => {
    event.preventDefault();
    predict();
  });
  makeFields();

  return {
    link: () => ({ task: task.value, ...values() }),
    restore(params) {
      if (info.tasks.includes(params.get("task"))) task.value = params.get("task");
      makeFields();
      for (const area of section.querySelectorAll(".fields textarea")) area.value = params.get(area.name) ?? area.value;
      predict();
    },
    again: () => predict(),
    repaint() {},
  };
}
