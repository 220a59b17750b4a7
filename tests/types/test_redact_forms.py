"""The forms of secrets that are masked, one by one; `secret` marks the part that must not appear."""

from __future__ import annotations

from functools import partial

import pytest

from framework.types.redact import MASK, redact, redact_data
from tests.support.cases import FACTOR, each
from tests.support.growth import FIRST, assert_linear, repeated

LETTERS = "aB3dE5gH7jK9mN1pQ2rS4tU6vW8xY0zA"
HEX = "0123456789abcdef0123456789abcdef"
LARGEST = FIRST * min(4 * FACTOR, 16)
FORMS = {
    # Keys with a known prefix
    "openai": f"sk-{LETTERS}",
    "openai project": f"sk-proj-{LETTERS}",
    "anthropic": f"sk-ant-api03-{LETTERS}",
    "openrouter": f"sk-or-v1-{HEX}",
    "langfuse": f"sk-lf-{LETTERS}",
    "stripe": f"sk_live_{LETTERS}",
    "stripe restricted": f"rk_test_{LETTERS}",
    "stripe webhook": f"whsec_{LETTERS}",
    "agentsd": f"agentsd_{LETTERS}aB3-E5_H7jK",
    "tavily": f"tvly-{LETTERS}",
    "tavily dev": f"tvly-dev-{LETTERS}",
    "groq": f"gsk_{LETTERS}",
    "xai": f"xai-{LETTERS}",
    "perplexity": f"pplx-{LETTERS}",
    "nvidia": f"nvapi-{LETTERS}",
    "hugging face": f"hf_{LETTERS}",
    "replicate": f"r8_{LETTERS}",
    "langsmith": f"lsv2_pt_{HEX}_0123456789",
    "github": f"ghp_{LETTERS}",
    "github oauth": f"gho_{LETTERS}",
    "github fine-grained": f"github_pat_{LETTERS}",
    "gitlab": f"glpat-{LETTERS}",
    "gitlab deploy": f"gldt-{LETTERS}",
    "slack bot": f"xoxb-123456789012-{LETTERS}",
    "slack app": f"xapp-1-A0-{LETTERS}",
    "npm": f"npm_{LETTERS}",
    "pypi": f"pypi-AgEIcHlwaS5vcmc{LETTERS}",
    "sendgrid": f"SG.{LETTERS}.{LETTERS}",
    "mailgun": f"key-{HEX}",
    "twilio": f"SK{HEX}",
    "google": "AIza" + "b" * 35,
    "google oauth": f"ya29.{LETTERS}",
    "google refresh": f"1//0{LETTERS}",
    "google client": f"GOCSPX-{LETTERS}",
    "vault": f"hvs.{LETTERS}",
    "aws access key": "AKIAABCDEFGHIJKLMNOP",
    "aws temporary": "ASIAABCDEFGHIJKLMNOP",
    "aws bedrock": f"ABSK{LETTERS}",
    "alibaba cloud": "LTAI5tABCDEFGHIJKLMN",
    "tencent cloud": "AKIDabcdefghij0123456789",
    "digitalocean": f"dop_v1_{HEX}{HEX}",
    "shopify": f"shpat_{HEX}",
    "square": f"sq0atp-{LETTERS}",
    "databricks": f"dapi{HEX}",
    "atlassian": f"ATATT3{LETTERS}",
    "grafana": f"glsa_{LETTERS}",
    "linear": f"lin_api_{LETTERS}",
    "notion": f"ntn_{LETTERS}",
    "postman": f"PMAK-{LETTERS}",
    "figma": f"figd_{LETTERS}",
    "docker": f"dckr_pat_{LETTERS}",
    "telegram": f"123456789:AA{LETTERS}",
    "age": f"AGE-SECRET-KEY-1{LETTERS.upper()}",
    "json web token": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3.c2lnbmF0dXJl",
    "json web token after a word": "id-eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3.c2lnbmF0dXJl",
    "private key": "-----BEGIN PRIVATE KEY-----\nMIIsecret\n-----END PRIVATE KEY-----",
    "pgp private key": "-----BEGIN PGP PRIVATE KEY BLOCK-----\nsecret\n-----END PGP PRIVATE KEY BLOCK-----",
    "private key that is cut off": "-----BEGIN RSA PRIVATE KEY-----\nMIIsecret",
    # Addresses
    "user and password": "https://me:secret@host/x",
    "password only": "redis://:secret@host:6379/0",
    "token as user": "https://secret@github.com/a/b",
    "postgres": "postgresql+psycopg://app:secret@db/app",
    "mysql data source": "root:secret@tcp(127.0.0.1:3306)/app",
    "slack webhook": f"https://hooks.slack.com/services/T000/B000/{LETTERS}",
    "presigned, signature": f"https://b/x?X-Amz-Signature={HEX}&x=1",
    "presigned, google": f"https://b/x?X-Goog-Signature={HEX}",
    "presigned, azure": f"https://b/x?sv=2024&sig={LETTERS}%3D",
    "access token": f"https://h/x?access_token={LETTERS}&y=1",
    "api key in a query": f"https://h/x?apikey={LETTERS}",
    # Headers
    "authorization": f"Authorization: Bearer {LETTERS}",
    "bearer": f"sent Bearer {LETTERS}",
    "bearer, two blanks": f"sent Bearer  {LETTERS}",
    "bearer, tab": f"sent bearer\t{LETTERS}",
    "basic": "then Basic dXNlcjpwYXNzd29yZA==",
    "authorization token": f"Authorization: token {LETTERS}",
    "x-api-key": f"x-api-key: {LETTERS}",
    "gitlab header": f"PRIVATE-TOKEN: {LETTERS}",
    "azure header": f"Ocp-Apim-Subscription-Key: {HEX}",
    "vault header": f"X-Vault-Token: {LETTERS}",
    "cookie": "Cookie: sid=secret; theme=dark",
    "set-cookie": "Set-Cookie: sid=secret; Path=/; HttpOnly",
    "cookie in json": '{"cookie": "sid=secret"}',
    # Settings and command lines
    "environment": f"OPENAI_API_KEY={LETTERS}",
    "aws secret": f"aws_secret_access_key = {LETTERS}",
    "aws session": f"AWS_SESSION_TOKEN={LETTERS}",
    "PGPASSWORD": "PGPASSWORD=secret psql",
    "MYSQL_PWD": "MYSQL_PWD=secret mysql",
    "pwd": "Server=db;Uid=app;Pwd=secret;",
    "connection string": "Server=db;Password=secret;",
    "azure account key": f"AccountName=a;AccountKey={LETTERS}==;EndpointSuffix=x",
    "azure shared key": f"SharedAccessKeyName=a;SharedAccessKey={LETTERS}=",
    "db pass": "DB_PASS=secret",
    "npmrc": f"//registry/:_authToken={LETTERS}",
    "passphrase": "passphrase: secret",
    "client secret": "{'client_secret': 'secret', 'a': 1}",
    "escaped json": r'"{\"api_key\": \"secret\"}"',
    "camel case": "accessToken: secret",
    "yaml in quotes": 'password: "a secret with blanks"',
    "ruby": ":password => 'secret'",
    "go": 'password := "secret"',
    "credentials": "credentials=secret",
    "full-width colon": "Password：secret",
    "chinese": "密码：secret，然后",
    "chinese, key": "密钥=secret",
    "option": "mysql --password secret",
    "option with =": "mysql --password=secret",
    "option with a prefix": "x --db-password 'secret'",
    "option token": "gh --token secret",
    "curl": "curl -u me:secret123 https://h",
    "xml": "<password>secret</password>",
    # Names with spaces and suffixes
    "api key with a space": "api key = secret",
    "api key as a label": f"API KEY: {LETTERS}",
    "api key without a separator": f"apikey {LETTERS}",
    "api key in a sentence": f"the API key is {LETTERS}",
    "secret_key_base": f"secret_key_base: {HEX}",
    "private_key_id": f'"private_key_id": "{HEX}"',
    "access_key_id": f"access_key_id: {LETTERS}",
    "client key": "client_key=secret",
    "database key": "db_key: secret",
    "numbered": "api_key_2=secret",
    "of an environment": "TOKEN_PROD=secret",
    "spanish": "contraseña: secret",
    "google key in a query": f"https://h/x?key={LETTERS}",
    "password in a sentence": "the password is hunter2secret, he wrote",
    "option -p": "mysql -u root -p secret shop",
    "option -p of sshpass": "sshpass -p secret ssh host",
    "option -p of docker": "docker login -u me -p secret host",
    # Further forms of gitleaks' rules
    "digitalocean, mixed": f"dop_v1_{LETTERS}",
    "shopify, mixed": f"shpat_{LETTERS}",
    "databricks, mixed": f"dapi{LETTERS}-2",
    "1password": f"ops_eyJ{LETTERS}{LETTERS}",
    "artifactory": f"AKCp{LETTERS}{LETTERS}",
    "aws bedrock, short-lived": f"bedrock-api-key-{LETTERS}",
    "azure": f"abc8Q~{LETTERS}",
    "cloudflare": f"v1.0-{HEX[:24]}-{HEX}{HEX}",
    "doppler": f"dp.pt.{LETTERS}",
    "dynatrace": f"dt0c01.{LETTERS[:24]}.{LETTERS}{LETTERS}",
    "easypost": f"EZAK{LETTERS}{LETTERS}",
    "facebook": f"EAAC{LETTERS}{LETTERS}",
    "flutterwave": f"FLWSECK_TEST-{LETTERS}",
    "fly.io": f"fo1_{LETTERS}{LETTERS}",
    "gitlab agent": f"glagent-{LETTERS}",
    "grafana cloud": f"glc_{LETTERS}",
    "harness": f"pat.{LETTERS[:22]}.{LETTERS[:24]}.{LETTERS[:20]}",
    "heroku": f"HRKU-AA{LETTERS}",
    "hugging face organization": f"api_org_{LETTERS}",
    "json web token in base64": f"ZXlK{LETTERS}{LETTERS}",
    "maxmind": f"aB3dE5_{LETTERS[:29]}_mmk",
    "microsoft teams": f"https://x.webhook.office.com/webhookb2/{LETTERS}@{LETTERS}",
    "openshift": f"sha256~{LETTERS}{LETTERS}",
    "planetscale": f"pscale_tkn_{LETTERS}",
    "prefect": f"pnu_{LETTERS}",
    "pulumi": f"pul-{HEX}",
    "rubygems": f"rubygems_{HEX}",
    "sentry": f"sntryu_{HEX}{HEX}",
    "slack workflow": f"https://hooks.slack.com/workflows/T000/{LETTERS}",
    "sourcegraph": f"sgp_{HEX}",
    "terraform": f"{LETTERS[:14]}.atlasv1.{LETTERS}{LETTERS}",
}
"""Invented secrets; none was ever valid."""


@each("form", FORMS)
def test_llm02_a_secret_is_masked_in_every_listed_form(form: str) -> None:
    text = FORMS[form]
    masked = redact(f"before {text} after")
    assert MASK in masked
    assert not any(hidden in masked for hidden in ("secret ", "secret@", "=secret", "MIIsecret", LETTERS, HEX))
    assert "secret" not in masked.replace("client_secret", "").replace("aws_secret", "").replace(
        "AGE-SECRET", ""
    ).replace("secret_key_base", "")
    assert masked.startswith("before ")
    assert redact(masked) == masked


@each(
    "text",
    [
        "a basic understanding, bearer of news",
        "tests pass: 412, fail: 0",
        "monkey: banana, keyboard: qwerty",
        "design: blue, signal: 9, assign: yes",
        "skip-level, task-force, desk-lamp, risk_level: high",
        "see --token-file and --password-stdin",
        "email me@example.com",
        "def f(signature: str) -> None",
        "password: ${PASSWORD}",
        "the cookie jar is empty",
        "[Errno 13] Permission denied: '/etc/passwd': open failed",
        "/etc/passwd: Permission denied",
        "cat: /run/secrets/token: No such file or directory",
        "agents.d/token: unknown key; config/credentials: invalid",
        "password: Field required, token: null, secret: undefined",
        "the password is wrong, the token is expired, the secret is out",
        "the password is base64-encoded, the api key is missing",
        "an API key: set it first; the api key was not accepted",
        "mkdir -p build2/out && docker run -p 8080:80 image2",
        "https://h/x?key=name&sort=asc",
        "passwords, tokens and keys of 3 users",
        "the token is 42 characters long",
        "password reset at 10:30",
        "dapi is short, patents.example.com, SKIP, API-first",
    ],
)
def test_ordinary_text_is_not_masked(text: str) -> None:
    assert redact(text) == text


def test_llm02_data_under_a_secrets_name_is_masked() -> None:
    names = [
        "PGPASSWORD",
        "mysql_pwd",
        "pwd",
        "X-Amz-Signature",
        "AccountKey",
        "db_pass",
        "Set-Cookie",
        "密码",
        "authToken",
    ]
    assert redact_data(dict.fromkeys(names, "secret")) == dict.fromkeys(names, MASK)
    assert redact_data({"pass": True, "monkey": "b", "signature": "f(x)"}) == {
        "pass": True,
        "monkey": "b",
        "signature": "f(x)",
    }


@each("form", FORMS)
@each("separator", ["", "-", " ", '"', "="])
def test_doubling_a_text_that_is_full_of_half_secrets_doubles_the_time(form: str, separator: str) -> None:
    for length in (3, 6, 12, len(FORMS[form])):
        piece = separator + FORMS[form][:length]
        assert_linear(redact, partial(repeated, piece), largest=LARGEST, label=repr(piece))


@pytest.mark.parametrize(
    "piece", ["-eyJ", "eyJaaaaaaaaaa.", "://a", "-----BEGIN A", "--token  ", "cookie: ", "aA", "<password>"]
)
def test_hostile_text_is_masked_in_linear_time(piece: str) -> None:
    assert_linear(redact, partial(repeated, piece), largest=32_000, label=repr(piece))
