#include "common/redact.h"

#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace statcollect {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kPlanted[] = "Zq7Rw2Lk9Xv4";  // in every secret below

TEST(RedactSetting, ThirtySecretsAreLeftOut) {
  const std::string p = kPlanted;
  const std::pair<const char*, std::string> secrets[] = {
      {"password", p},
      {"db.password", p},
      {"dbPassword", p},
      {"smtp_passwd", p},
      {"key_passphrase", p},
      {"client_secret", p},
      {"secrets.0", p},
      {"aws.credentials", p},
      {"apikey", p},
      {"api_key", p},
      {"api_keys.0", p},
      {"wandb.apiKey", p},
      {"auth", p},
      {"http_auth", p},
      {"authorization", "Bearer " + p},
      {"hf_token", p},
      {"hub.token", p},
      {"access_tokens", p},
      {"note", "hf_" + p},
      {"note", "sk-" + p},
      {"note", "use ghp_" + p + " here"},
      {"note", "glpat-" + p},
      {"note", "xoxb-" + p},
      {"note", "stc_0123456789ab_" + p},
      {"note", "eyJhbGciOiJIUzI1NiJ9." + p + ".sig"},
      {"data", "https://user:" + p + "@host/path"},
      {"data", "s3://" + p + "@bucket/path"},
      {"data", "https://host/blob?sv=1&sig=" + p + "&se=2"},
      {"data", "https://host/x?access_token=" + p},
      {"dsn", "host=db password=" + p + " port=1"},
      {"headers", "{'Authorization': 'Bearer " + p + "'}"},
      {"pem", "-----BEGIN RSA PRIVATE KEY-----\n" + p + "\n-----END RSA PRIVATE KEY-----"},
      {"seed_phrase", p + "aB3dE6gH9j"},
      {"command_line", "train.py --x " + p + "Kc5Tn8Yb1"},
  };
  static_assert(std::size(secrets) >= 30);
  for (const auto& [name, value] : secrets) {
    EXPECT_THAT(RedactSetting(name, value), Not(HasSubstr(kPlanted))) << name << " = " << value;
    EXPECT_THAT(RedactSetting(name, value), HasSubstr(kRedacted)) << name << " = " << value;
  }
}

TEST(RedactSetting, WhatIsNoSecretStays) {
  const std::pair<const char*, const char*> settings[] = {
      {"lr", "0.1"},
      {"model.num_key_value_heads", "8"},
      {"max_tokens", "512"},
      {"tokens", "1e9"},
      {"api_key", "null"},
      {"use_auth", "true"},
      {"pad_token", "<|endoftext|>"},
      {"tokenizer.eos_token", "</s>"},
      {"tokenizer.mask.token", "[MASK]"},
      {"sort_key", "length"},
      {"tokenizer", "gpt2"},
      {"architecture", "Qwen2VLForConditionalGeneration"},
      {"class", "torch.nn.modules.linear.NonDynamicallyQuantizableLinear"},
      {"git.commit", "b94dbcc0a1f2e3d4c5b6a7980123456789abcdef"},
      {"data.sha256", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
      {"gpu.uuid", "GPU-3f1c1a6e-8c4e-4c9b-9f1e-0a1b2c3d4e5f"},
      {"platform", "Linux-6.1.0-18-amd64-x86_64-with-glibc2.36"},
      {"data", "https://host/path?version=3"},
      {"data", "/data/C4/en.noblocklist/c4-train.00000-of-01024.json.gz"},
      {"email", "someone@example.com"},
      {"run", "stc_baseline"},
      {"optimizer", "sk-learn"},
      {"empty", ""},
  };
  for (const auto& [name, value] : settings) EXPECT_EQ(RedactSetting(name, value), value) << name;
}

TEST(RedactSetting, TheRestOfAValueStays) {
  EXPECT_EQ(RedactSetting("data", "https://a:b@host/x"), "https://(redacted)@host/x");
  EXPECT_EQ(RedactSetting("data", "https://host/x?sig=abc&v=2"), "https://host/x?sig=(redacted)&v=2");
  EXPECT_EQ(RedactSetting("c", "a@b https://u:p@h https://v:q@i"),
            "a@b https://(redacted)@h https://(redacted)@i");
}

TEST(RedactSetting, ItsOwnResultDoesNotChangeAgain) {
  for (const char* value :
       {"https://a:b@host/x?sig=abc", "hf_abcdefghijkl", "password=abc", "Bearer abcdefghijk"}) {
    const std::string once = RedactSetting("note", value);
    EXPECT_EQ(RedactSetting("note", once), once);
  }
}

TEST(RedactSetting, HostileValuesEnd) {
  for (const char* piece : {"://", "@", "=", "Bearer ", "hf_", "sk-", "-----BEGIN ", "\xff", "aB1"}) {
    std::string value;
    while (value.size() < 16384) value += piece;
    (void)RedactSetting(value.substr(0, 300), value);
  }
}

}  // namespace
}  // namespace statcollect
