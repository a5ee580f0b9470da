// A decision in words: when, because of what, and whose share it changed.

import type { Shapes } from "../server/api";
import { changed, counted, duration, moment } from "../words";
import { JobName } from "./basics";

type Decision = Shapes["DecisionView"];

const SHOWN = 6;

export function DecisionItem(props: {
  decision: Decision;
  unit: string;
  now_s: number;
  isBrief?: boolean; // without reasons, and with the first changes alone
  children?: React.ReactNode;
}) {
  const { decision, unit, now_s, isBrief = false } = props;
  const changes = isBrief ? decision.changes.slice(0, SHOWN) : decision.changes;
  const more = decision.changes.length - changes.length;
  const age = duration(now_s - decision.at_s);
  return (
    <li className="decision">
      <p>
        <time dateTime={new Date(decision.at_s * 1_000).toISOString()} title={`${age} ago`}>
          {moment(decision.at_s, now_s)}
        </time>{" "}
        {decision.cause}
        {decision.waiting ? <span className="quiet"> · {counted(decision.waiting, "job")} left waiting</span> : null}
      </p>
      {decision.trouble && <p className="bad">{decision.trouble}</p>}
      {changes.length > 0 && (
        <ul className={isBrief ? "brief" : undefined}>
          {changes.map((change) => (
            <li key={change.job}>
              <JobName job={change.job} name={change.name} />{" "}
              {isBrief ? (
                <span title={change.reason}>
                  {change.gpus_before} → {change.gpus}
                </span>
              ) : (
                <>
                  {changed(change.gpus_before, change.gpus, unit)}
                  <span className="quiet"> · {change.reason}</span>
                </>
              )}
            </li>
          ))}
          {more > 0 && (
            <li className="quiet">
              <a href={`#/decisions/${decision.number}`}>and {counted(more, "other job")}</a>
            </li>
          )}
        </ul>
      )}
      {props.children}
    </li>
  );
}
