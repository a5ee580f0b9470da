// Lists of jobs that come in pages.

import type { JobView, Server } from "./api";

const PAGES_MAX = 20;

/** Get all jobs that have not ended, the newest first. */
export async function activeJobs(server: Server, signal: AbortSignal): Promise<JobView[]> {
  const found: JobView[] = [];
  let cursor: string | undefined;
  for (let page = 0; page < PAGES_MAX; page++) {
    const answer = await server.get("/jobs", { active: true, limit: 1_000, cursor }, signal);
    found.push(...answer.items);
    if (!answer.next) break;
    cursor = answer.next;
  }
  return found;
}
