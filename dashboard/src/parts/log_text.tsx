// What a program has printed, as text: without a terminal's control sequences, with what is searched.

import type { ReactNode } from "react";

// Colours and cursor movements (CSI), titles and links (OSC), and what else begins with ESC.
const SEQUENCES = /\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])/g;
const CONTROLS = /[\x00-\x08\x0b-\x1f\x7f]/g;

/** Give what a terminal shows of a line in the end: of a progress bar, its newest state. */
export function plain(text: string): string {
  const drawn = text.replace(/\r+$/, "").split("\r").at(-1) ?? "";
  return drawn.replace(SEQUENCES, "").replace(CONTROLS, "");
}

/** Mark each place of a line in which `wanted` is, in lower or upper case. */
export function marked(text: string, wanted: string): ReactNode {
  if (wanted === "") return text;
  const lower = text.toLowerCase();
  if (lower.length !== text.length) return text; // a few letters change their length
  const parts: ReactNode[] = [];
  let done = 0;
  for (let at = lower.indexOf(wanted); at >= 0; at = lower.indexOf(wanted, done)) {
    const end = at + wanted.length;
    parts.push(text.slice(done, at), <mark key={at}>{text.slice(at, end)}</mark>);
    done = end;
  }
  return [...parts, text.slice(done)];
}
