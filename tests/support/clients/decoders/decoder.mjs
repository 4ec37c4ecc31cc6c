// Print the body of an answer as it comes, decompressed as fetch does by itself.
const [, , url, accept] = process.argv;
const answer = await fetch(url, { headers: { accept } });
if (!answer.ok) throw new Error(`status ${answer.status}`);
for await (const piece of answer.body) process.stdout.write(piece);
