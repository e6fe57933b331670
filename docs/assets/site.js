// Formulas are set by KaTeX, whose files lie beside this one; shapes in wide tables and code can be scrolled by key.
"use strict";

document.addEventListener("DOMContentLoaded", () => {
  for (const element of document.querySelectorAll(".arithmatex")) {
    renderMathInElement(element, {
      delimiters: [
        { left: "\\(", right: "\\)", display: false },
        { left: "\\[", right: "\\]", display: true },
      ],
      throwOnError: false,
    });
  }
  const reachable = () => {
    for (const box of document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset pre > code, .katex-display, .wide")) {
      if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
    }
  };
  reachable();
  // The theme wraps tables a moment later, and sizes change.
  setTimeout(reachable, 500);
  addEventListener("resize", reachable);
});
