"""Storage options: secrets are refused, words are read."""

from __future__ import annotations

import pytest

from shardprep.errors import ConfigError
from shardprep.storage.options import flag, is_secret, requester_pays
from shardprep.storage.store import open_store

SECRETS = """key secret access_key_id secret_access_key aws_access_key_id AWS_SECRET_ACCESS_KEY aws_session_token token
session_token password account_key sas sas_token sas_key azure_storage_account_key client_secret connection_string
service_account_key sse_customer_key_base64 passphrase credentials bearer_token storage-key"""
HARMLESS = """endpoint_url region request_payer requester_pays anon skip_signature virtual_hosted_style account_name
service_account federated_token_file web_identity_token_file container_credentials_full_uri sse_kms_key_id tenant_id
client_id key_filename username port conditional_put server_side_encryption"""


@pytest.mark.parametrize("name", SECRETS.split())
def test_secrets_are_refused_for_every_kind_of_store(name: str):
    assert is_secret(name)
    for uri in ("s3://b", "sftp://host/x", "/data"):
        with pytest.raises(ConfigError, match="environment") as caught:
            open_store(uri, options={name: "hunter2"})
        assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("name", HARMLESS.split())
def test_what_is_no_secret_passes(name: str):
    assert not is_secret(name)


def test_a_password_in_a_uri_is_refused_and_not_shown():
    for uri, options in (("sftp://me:hunter2@host/x", {}), ("s3://b", {"endpoint_url": "http://me:hunter2@host:9000"})):
        with pytest.raises(ConfigError, match="password") as caught:
            open_store(uri, options=options)
        assert "hunter2" not in str(caught.value)


def test_words():
    assert requester_pays({"request_payer": "requester"})
    assert requester_pays({"requester_pays": "True"})
    assert not requester_pays({})
    with pytest.raises(ConfigError, match='"bucket-owner"'):
        requester_pays({"request_payer": "bucket-owner"})
    assert flag({"anon": "yes"}, "anon")
    assert not flag({"anon": "false"}, "anon")
    with pytest.raises(ConfigError, match='"maybe"'):
        flag({"anon": "maybe"}, "anon")


def test_options_that_no_client_knows_are_refused_when_the_store_is_opened():
    with pytest.raises(ConfigError, match="nonsense"):
        open_store("s3://b", options={"nonsense": "1"})
    with pytest.raises(ConfigError, match="nonsense"):
        open_store("gs://b", options={"nonsense": "1"})
