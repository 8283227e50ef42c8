"""Two turns over one WebSocket with the OpenAI SDK: the second sends only what is new."""

import argparse

from openai import OpenAI


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8080/v1")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--key", default="none")
    args = parser.parse_args()
    client = OpenAI(base_url=args.url, api_key=args.key)
    with client.responses.connect() as connection:
        parent: dict[str, str] = {}
        for question in ("Name a river in France.", "Which city lies on it?"):
            connection.response.create(model=args.model, input=question, store=False, **parent)
            for event in connection:
                if event.type == "response.output_text.delta":
                    print(event.delta, end="", flush=True)
                if event.type in ("response.completed", "response.incomplete"):
                    parent = {"previous_response_id": event.response.id}
                    break
                if event.type in ("response.failed", "error"):
                    raise SystemExit(f"the turn failed: {event}")
            print()


if __name__ == "__main__":
    main()
