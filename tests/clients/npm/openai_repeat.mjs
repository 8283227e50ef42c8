// A loop that appends `response.output` and sends all of it again, over HTTP. usage: URL STEPS
import OpenAI from 'openai';

const [url, steps] = process.argv.slice(2);
const client = new OpenAI({ apiKey: 'none', baseURL: url, maxRetries: 0 });
const input = [{ role: 'user', content: 'Look it up.' }];
for (const body of JSON.parse(steps)) {
  const { output } = await client.responses.create({ ...body, input });
  input.push(...output);
  const calls = output.filter((item) => item.type.endsWith('_call'));
  for (const call of calls) {
    input.push({ type: `${call.type}_output`, call_id: call.call_id, output: 'a colour' });
  }
  if (calls.length === 0) input.push({ role: 'user', content: 'Go on.' });
}
