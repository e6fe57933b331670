// The shape explorer: concrete sizes for every step of a layer. Shapes come from the stages' signatures, as data.
"use strict";

const EXPLORER_WORDS = {
  en: {
    step: "step", shape: "result", elements: "elements", bytes: "bytes", flops: "operations", view: "view",
    dtype: "dtype", parameters: "parameters", weights: "weights", biases: "biases", cache: "key/value cache",
    total: "operations in all", peak: "scores, per stored copy", roles: { query: "query", key: "key", value: "value" },
    whole: (name, least) => `${name} must be a whole number of at least ${least}`,
    divide: (whole, part, a, b) => `${whole} must be a multiple of ${part}; got ${a} and ${b}`,
    sizes: "sizes", caption: "Every step with these sizes",
  },
  zh: {
    step: "步骤", shape: "结果形状", elements: "元素数", bytes: "字节", flops: "浮点运算", view: "视图",
    dtype: "数据类型", parameters: "参数量", weights: "权重", biases: "偏置", cache: "键值缓存（KV cache）",
    total: "浮点运算总数", peak: "分数矩阵（每存一份）", roles: { query: "查询", key: "键", value: "值" },
    whole: (name, least) => `${name} 必须是不小于 ${least} 的整数`,
    divide: (whole, part, a, b) => `${whole} 必须是 ${part} 的整数倍；现在是 ${a} 和 ${b}`,
    sizes: "尺寸", caption: "各步骤在这些尺寸下的结果",
  },
};

function explorerCompute(data, fields, dtype) {
  const values = { ...fields };
  const all = (dims, bound) => dims.map((dim) => evaluateAxis(dim, bound));
  const product = (shape) => shape.reduce((a, b) => a * b, 1n);
  for (const [name, expression] of Object.entries(data.derived)) values[name] = evaluateAxis(expression, values);
  const width = BigInt(data.dtypes[dtype]);
  const rows = [];
  const totals = { weight: 0n, bias: 0n, flops: 0n, cache: 0n, scores: 0n };
  for (const call of data.calls) {
    const stage = data.stages[call.stage];
    const bound = { ...values };
    for (const [name, expression] of Object.entries(call.bind)) bound[name] = evaluateAxis(expression, values);
    if (call.stage.startsWith("project_")) {
      for (const argument of stage.arguments) {
        if (argument.name in totals) totals[argument.name] += product(all(argument.dims, bound));
      }
    }
    if (call.grouped && values.group === 1n) continue;
    const shape = all(stage.result.dims, bound);
    const elements = product(shape);
    const flops = evaluateAxis(call.flops, bound);
    totals.flops += flops;
    if (call.cached) totals.cache += elements * width;
    if (call.stage === "scores") totals.scores = elements * width;
    rows.push({ call, shape, elements, bytes: call.view ? 0n : elements * width, flops });
  }
  return { rows, totals };
}

function explorerNumber(value) {
  return value.toString().replace(/\B(?=(\d{3})+$)/g, "\u202f");
}

function explorerBytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let size = Number(value);
  let unit = 0;
  while (size >= 1024 && unit < units.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${unit ? size.toPrecision(3).replace(/e.*/, "") : size} ${units[unit]}`;
}

function startExplorer(place, data) {
  const words = EXPLORER_WORDS[place.dataset.language];
  const make = (tag, properties = {}, ...children) => {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
  };
  const inputs = {};
  const form = make("fieldset", { className: "explorer__fields" }, make("legend", { textContent: words.sizes }));
  for (const field of data.fields) {
    const input = make("input", { type: "text", inputMode: "numeric", value: field.value, id: `explorer-${field.name}`, autocomplete: "off" });
    input.setAttribute("aria-describedby", "explorer-message");
    inputs[field.name] = input;
    form.append(make("label", { htmlFor: input.id }, make("code", { textContent: field.name }), input));
  }
  const dtype = make("select", { id: "explorer-dtype" }, ...Object.keys(data.dtypes).map((d) => make("option", { value: d, textContent: d })));
  form.append(make("label", { htmlFor: "explorer-dtype" }, make("code", { textContent: words.dtype }), dtype));
  const message = make("p", { id: "explorer-message", className: "explorer__message" });
  message.setAttribute("role", "status");
  const facts = make("dl", { className: "explorer__facts" });
  const body = make("tbody");
  const head = make("tr", {}, ...[words.step, words.shape, words.elements, words.bytes, words.flops].map((w) => make("th", { scope: "col", textContent: w })));
  const tableElement = make("table", { className: "explorer__table" }, make("caption", { textContent: words.caption }), make("thead", {}, head), body);
  const wide = make("div", { className: "wide explorer__wide" }, tableElement);
  wide.setAttribute("role", "region");
  wide.setAttribute("aria-label", words.caption);
  place.replaceChildren(form, message, facts, wide);

  const read = () => {
    const fields = {};
    const problems = [];
    for (const field of data.fields) {
      const text = inputs[field.name].value.trim();
      const good = /^\d{1,12}$/.test(text) && Number(text) >= field.smallest;
      inputs[field.name].setAttribute("aria-invalid", String(!good));
      if (good) fields[field.name] = BigInt(text);
      else problems.push(words.whole(field.name, field.smallest));
    }
    for (const expression of new Set(Object.values(data.derived))) {
      const [whole, part] = expression.split("/");
      if (whole in fields && part in fields && fields[whole] % fields[part] !== 0n) {
        problems.push(words.divide(whole, part, fields[whole], fields[part]));
        inputs[part].setAttribute("aria-invalid", "true");
      }
    }
    return { fields, problems };
  };
  const stageName = (call) => {
    const section = document.getElementById(call.stage);
    const name = section ? section.firstChild.textContent.trim() : data.stages[call.stage].name;
    return call.role ? `${name} (${words.roles[call.role]})` : name;
  };
  const fact = (name, term, value) => make("div", {}, make("dt", { textContent: term }), make("dd", { id: `fact-${name}`, textContent: value }));
  const show = () => {
    const { fields, problems } = read();
    message.textContent = problems.join("; ");
    wide.hidden = facts.hidden = problems.length > 0;
    if (problems.length) return;
    const { rows, totals } = explorerCompute(data, fields, dtype.value);
    facts.replaceChildren(
      fact("parameters", words.parameters, `${explorerNumber(totals.weight)} ${words.weights} + ${explorerNumber(totals.bias)} ${words.biases}`),
      fact("flops", words.total, explorerNumber(totals.flops)),
      fact("scores", words.peak, explorerBytes(totals.scores)),
      fact("cache", words.cache, explorerBytes(totals.cache)),
    );
    facts.querySelector("#fact-cache").dataset.bytes = totals.cache;
    body.replaceChildren(...rows.map(({ call, shape, elements, bytes, flops }) => {
      const link = make("a", { href: `#${call.stage}`, textContent: stageName(call) });
      const size = call.view ? words.view : explorerBytes(bytes);
      const row = make("tr", {}, make("th", { scope: "row" }, link), make("td", {}, make("code", { textContent: `(${shape.join(", ")})` })),
        ...[explorerNumber(elements), size, explorerNumber(flops)].map((t) => make("td", { className: "number", textContent: t })));
      Object.assign(row.dataset, { stage: call.stage, role: call.role, shape: shape.join(","), elements, bytes, flops });
      return row;
    }));
    wide.scrollWidth > wide.clientWidth ? wide.tabIndex = 0 : wide.removeAttribute("tabindex");
  };
  form.addEventListener("input", show);
  show();
}

document.addEventListener("DOMContentLoaded", () => {
  const place = document.getElementById("shape-explorer");
  const data = document.getElementById("stages-data");
  if (place && data) startExplorer(place, JSON.parse(data.textContent));
});
