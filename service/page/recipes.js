// A job as a command or a program that makes the same clip again.

function fields(job) {
  const [r, its] = [job.request, job];
  const all = { prompt: r.prompt, model: r.model, seconds: r.seconds, fps: r.fps, size: `${r.width}x${r.height}`, fit: r.fit, seed: r.seed, steps: r.steps,
    negative_prompt: r.negative_prompt, project: its.project, shot: its.shot, tags: its.tags.join(","), priority: its.priority || "" };
  return Object.entries(all).filter(([, value]) => value !== "" && value !== null && value !== undefined);
}

const quote = (text) => `'${String(text).replaceAll("'", "'\\''")}'`;
const pictureName = (job) => job.request.image_name || "picture.jpg";

export function curlText(job) {
  const parts = [`curl ${location.origin}/jobs`, '-H "Authorization: Bearer $LANEWISE_KEY"', `-F ${quote(`image=@${pictureName(job)}`)}`,
    ...fields(job).map(([name, value]) => `--form-string ${quote(`${name}=${value}`)}`)];
  return parts.join(" \\\n  ");
}

export function pythonText(job) {
  const values = fields(job).map(([name, value]) => `        ${JSON.stringify(name)}: ${JSON.stringify(String(value))},`).join("\n");
  return `import httpx

KEY = "sk-…"
with open(${JSON.stringify(pictureName(job))}, "rb") as picture:
    answer = httpx.post(
        "${location.origin}/jobs",
        headers={"Authorization": f"Bearer {KEY}"},
        files={"image": picture},
        data={
${values}
        },
    )
answer.raise_for_status()
print(answer.json()["id"])
`;
}
