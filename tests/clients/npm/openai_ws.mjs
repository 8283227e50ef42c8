// Two chained turns, the second with a tool round, over `ResponsesWS`. usage: URL MODEL
import OpenAI from 'openai';
import { ResponsesWS } from 'openai/resources/responses/ws';

const [url, model] = process.argv.slice(2);
const socket = new ResponsesWS(new OpenAI({ apiKey: 'none', baseURL: url }));
const tool = {
  type: 'function',
  name: 'look_up',
  description: 'Look a word up.',
  strict: false,
  parameters: { type: 'object', properties: { word: { type: 'string' } }, required: ['word'] },
};
const waiting = [];
const seen = { errors: [] };

function turn(body) {
  const types = [];
  return new Promise((resolve) => {
    waiting.push({ types, resolve });
    socket.send({ type: 'response.create', model, store: false, ...body });
  });
}

socket.on('error', (error) => {
  seen.errors.push(error.message);
  waiting.shift()?.resolve({ error });
});
socket.on('event', (event) => {
  waiting[0]?.types.push(event.type);
  if (['response.completed', 'response.incomplete', 'response.failed'].includes(event.type)) {
    const { types, resolve } = waiting.shift();
    resolve({ types, response: event.response });
  }
});

const first = await turn({ input: 'remember:COLOUR=teal' });
const called = await turn({
  input: 'Look it up.', tools: [tool], previous_response_id: first.response.id,
});
const [call] = called.response.output.filter((item) => item.type === 'function_call');
const last = await turn({
  previous_response_id: called.response.id,
  tools: [tool],
  input: [
    { type: 'function_call_output', call_id: call.call_id, output: 'a colour' },
    { type: 'message', role: 'user', content: 'recall:COLOUR' },
  ],
});
const lost = await turn({ input: 'x', previous_response_id: 'resp_unknown' });
const after = await turn({ input: 'x' });
socket.close();
console.log(JSON.stringify({
  ...seen,
  first: first.types,
  call: { name: call.name, arguments: JSON.parse(call.arguments) },
  text: last.response.output[0].content[0].text,
  lost: lost.error?.error?.error?.code,
  after: after.response.status,
}));
