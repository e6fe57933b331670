// Axis expressions as the stages write them: names, whole numbers, + - * / and brackets. Whole numbers only:
// BigInt keeps every digit, and a division that leaves a remainder is an error, as it is for a tensor.
"use strict";

class AxisError extends Error {}

function evaluateAxis(expression, values) {
  const tokens = expression.replace(/[#{}]/g, "").match(/[a-z_][a-z_0-9]*|\d+|[-+*/()]/g) || [];
  let at = 0;
  const sum = () => {
    let left = product();
    while (tokens[at] === "+" || tokens[at] === "-") {
      left = tokens[at++] === "+" ? left + product() : left - product();
    }
    return left;
  };
  const product = () => {
    let left = atom();
    while (tokens[at] === "*" || tokens[at] === "/") {
      const operator = tokens[at++];
      const right = atom();
      if (operator === "*") {
        left *= right;
      } else {
        if (right === 0n || left % right !== 0n) throw new AxisError(`${expression}: ${right} does not divide ${left}`);
        left /= right;
      }
    }
    return left;
  };
  const atom = () => {
    const token = tokens[at++];
    if (token === "(") {
      const inside = sum();
      at++;
      return inside;
    }
    if (/^\d+$/.test(token)) return BigInt(token);
    if (!(token in values)) throw new AxisError(`${expression}: no axis is called ${token}`);
    return values[token];
  };
  const found = sum();
  if (at < tokens.length) throw new AxisError(`${expression}: not an axis expression`);
  return found;
}
