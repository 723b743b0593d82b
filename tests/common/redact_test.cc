#include "common/redact.h"

#include <iterator>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace statcollect {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// In every secret below. Values that are kept do not have it.
#define P "Zq7Rw2Lk9Xv4"
#define R "(redacted)"
constexpr std::string_view kPlanted = P;

struct Case {
  const char* reason;
  const char* name;   // of the setting
  const char* value;  // as the program has it
  const char* shown;  // as it is stored; "": unchanged
};

constexpr Case kCases[] = {
    // --- hidden: the setting's name says so
    {"a password", "password", P, R},
    {"a password in a section", "db.password", P, R},
    {"words of a name also begin with a capital letter", "dbPassword", P, R},
    {"another word for password", "smtp_passwd", P, R},
    {"the passphrase of a key", "key_passphrase", P, R},
    {"pass after whose pass it is", "smtp_pass", P, R},
    {"pass in a section", "smtp.pass", P, R},
    {"a variable of the environment", "env.TORCH_PASS", P, R},
    {"a variable of the environment", "env.VLLM_API_KEY", P, R},
    {"without a mark between the words", "dbpassword", P, R},
    {"without a mark between the words", "hftoken", P, R},
    {"without a mark between the words", "privatekey", P, R},
    {"without a mark between the words", "apikey", P, R},
    {"a password of digits", "db_pass", "12345678", R},
    {"a secret", "client_secret", P, R},
    {"an entry of a list of secrets", "secrets.0", P, R},
    {"credentials", "aws.credentials", P, R},
    {"what stands below credentials", "auth.username", P, R},
    {"a key of an interface", "api_key", P, R},
    {"an entry of a list of keys", "api_keys.0", P, R},
    {"a key of an interface", "wandb.apiKey", P, R},
    {"credentials of HTTP", "http_auth", P, R},
    {"a header", "headers.Authorization", "Basic " P, R},
    {"a header", "headers.X-Api-Key", P, R},
    {"a header", "headers.Cookie", "id=" P, R},
    {"a token", "hf_token", P, R},
    {"a token in a section", "hub.token", P, R},
    {"several tokens", "access_tokens", P, R},
    {"a webhook of an unknown service", "alert_webhook", "https://x.example/a/" P,
     "https://x.example/" R},
    // --- hidden: an option or a name before it in the text
    {"an option", "command_line", "train.py --db-pass " P " --lr 0.1",
     "train.py --db-pass " R " --lr 0.1"},
    {"an option", "command_line", "train.py --authtoken " P, "train.py --authtoken " R},
    {"an option with an equals sign", "command_line", "train.py --api-key=" P " -x",
     "train.py --api-key=" R " -x"},
    {"an option with one dash", "command_line", "train.py -token " P, "train.py -token " R},
    {"commas and ampersands belong to a password", "command_line", "t.py --password a,b&" P,
     "t.py --password " R},
    {"a value that the shell quoted", "command_line", "t.py '--password=a b" P "' --x",
     "t.py '--password=" R "' --x"},
    {"a quote inside a quoted value", "command_line", "t.py --password 'a'\"'\"'b" P "' --x",
     "t.py --password '" R "' --x"},
    {"a name of Hydra", "command_line", "train.py wandb.api_key=" P " lr=1",
     "train.py wandb.api_key=" R " lr=1"},
    {"a header of curl", "command_line", "-H 'Authorization: Basic " P "' -v",
     "-H 'Authorization: " R "' -v"},
    {"a header of curl", "command_line", "-H 'X-Api-Key: " P "'", "-H 'X-Api-Key: " R "'"},
    {"a user of curl", "command_line", "curl --user me:" P " x", "curl --user me:" R " x"},
    {"a list of arguments", "args", "['--password', '" P "', '--lr', '1']",
     "['--password', '" R "', '--lr', '1']"},
    {"a list of arguments", "args", "[\"--hf-token\", \"" P "\"]", "[\"--hf-token\", \"" R "\"]"},
    {"a member of JSON", "extra", "{\"api_key\": \"" P "\", \"lr\": 1}",
     "{\"api_key\": \"" R "\", \"lr\": 1}"},
    {"a member of JSON inside JSON", "extra", "{\\\"api_key\\\": \\\"" P "\\\"}",
     "{\\\"api_key\\\": \\\"" R "\\\"}"},
    {"a member of Python's dict", "extra", "{'password': b'" P "'}", "{'password': b'" R "'}"},
    {"a pair of Python", "extra", "[('api_key', '" P "')]", "[('api_key', '" R "')]"},
    {"a list of secrets", "extra", "{'api_keys': ['" P "', '" P "'], 'n': 2}",
     "{'api_keys': [" R "], 'n': 2}"},
    {"name and value of a container's variable", "extra",
     "{\"name\": \"DB_PASSWORD\", \"value\": \"" P "\"}",
     "{\"name\": \"DB_PASSWORD\", \"value\": \"" R "\"}"},
    {"an argument of a call", "text", "connect(host='h', password='" P "')",
     "connect(host='h', password='" R "')"},
    {"an argument of a call", "text", "connect(password=" P ", port=1)",
     "connect(password=" R ", port=1)"},
    {"a default in a program", "text", "def f(password: str = '" P "')",
     "def f(password: str = '" R "')"},
    {"an assignment to the environment", "text", "os.environ['HF_TOKEN'] = '" P "'",
     "os.environ['HF_TOKEN'] = '" R "'"},
    {"a connection string", "dsn", "host=db password=" P " port=1",
     "host=db password=" R " port=1"},
    {"a connection string", "dsn", "Server=h;Password=" P ";User=u",
     "Server=h;Password=" R ";User=u"},
    {"a connection string", "dsn", "AccountName=n;AccountKey=" P "==;Suffix=s",
     "AccountName=n;AccountKey=" R ";Suffix=s"},
    {"a line of YAML", "text", "user: me\npassword: " P "\nport: 1",
     "user: me\npassword: " R "\nport: 1"},
    {"a header in a text", "text", "Authorization: Digest username=\"u\", " P, "Authorization: " R},
    {"a text that was cut", "text", "login(password='" P, "login(password='" R},
    // --- hidden: its form
    {"a bearer's token", "text", "sent Bearer " P " to", "sent Bearer " R " to"},
    {"a bearer's token in lower case", "text", "got 'bearer " P "'", "got 'bearer " R "'"},
    {"user and password in base64", "text", "sent Basic dXNlcjpwYXNz", "sent Basic " R},
    {"a token of Hugging Face", "note", "hf_" P, R},
    {"a key of OpenAI", "note", "sk-" P, R},
    {"a key of OpenAI", "note", "sk-proj-" P, R},
    {"a token of GitHub", "note", "use ghp_" P " here", "use " R " here"},
    {"a token of GitLab", "note", "glpat-" P, R},
    {"a token of Slack", "note", "xoxb-" P, R},
    {"a key of Google", "note", "AIza" P P, R},
    {"a token of ours", "note", "stc_0123456789ab_" P, R},
    {"a JSON web token", "note", "eyJhbGciOiJIUzI1NiJ9." P ".sig", R},
    {"a user with a password", "data", "https://user:" P "@host/path", "https://" R "@host/path"},
    {"a slash in a password", "data", "postgres://u:pa/ss" P "@h", "postgres://" R "@h"},
    {"an at sign in a password", "data", "mysql://u:p@ss/" P "@db.x/n", "mysql://" R "@db.x/n"},
    {"a token as user", "data", "s3://" P "@bucket/path", "s3://" R "@bucket/path"},
    {"a signature", "data", "https://host/blob?sv=1&sig=" P "&se=2",
     "https://host/blob?sv=1&sig=" R "&se=2"},
    {"a parameter", "data", "https://host/x?access_token=" P "#top",
     "https://host/x?access_token=" R "#top"},
    {"a webhook of Slack", "text", "https://hooks.slack.com/services/T0/B0/" P,
     "https://hooks.slack.com/services/" R},
    {"a webhook of Discord", "text", "see https://discord.com/api/webhooks/1/" P " now",
     "see https://discord.com/api/webhooks/" R " now"},
    {"a bot of Telegram", "text", "https://api.telegram.org/bot1:" P "/send",
     "https://api.telegram.org/bot" R "/send"},
    {"a webhook of Lark", "text", "https://open.feishu.cn/open-apis/bot/v2/hook/" P,
     "https://open.feishu.cn/open-apis/bot/v2/hook/" R},
    {"a private key", "pem",
     "-----BEGIN RSA PRIVATE KEY-----\n" P "\n-----END RSA PRIVATE KEY-----\nx", R "\nx"},
    {"a long random text", "seed_phrase", P "aB3dE6gH9j", R},
    {"a long random text", "command_line", "train.py --x " P "Kc5Tn8Yb1", "train.py --x " R},
    // --- kept
    {"a number", "lr", "0.1", ""},
    {"not the last word", "model.num_key_value_heads", "8", ""},
    {"not the last word", "key_dim", "64", ""},
    {"not the last word", "pad_token_id", "0", ""},
    {"a number of tokens", "max_tokens", "512", ""},
    {"a number of tokens", "tokens", "1e9", ""},
    {"a number of tokens", "budget_tokens", "300B", ""},
    {"passes", "num_passes", "3", ""},
    {"a word that ends in pass", "bypass", "attention", ""},
    {"a word that ends in pass", "compass", "north", ""},
    {"a pass over the data", "forward_pass", "compiled", ""},
    {"a word that begins with auth", "author", "Ann Other", ""},
    {"a word that begins with token", "tokenizer", "gpt2", ""},
    {"no value", "api_key", "null", ""},
    {"a switch", "use_auth", "true", ""},
    {"a reference to a variable", "hf_token", "${HF_TOKEN}", ""},
    {"a special token", "pad_token", "<|endoftext|>", ""},
    {"a special token", "tokenizer.mask.token", "[MASK]", ""},
    {"what a column is called", "sort_key", "length", ""},
    {"what a column is called", "key", "input_ids", ""},
    {"a layer", "key", "module.blocks.*.ln1.eps", ""},
    {"a setting of a layer that is called auth", "module.auth.proj.eps", "1e-05", ""},
    {"a module of a class that is called Auth", "module_of.Auth_3", "encoder.auth", ""},
    {"the path of a secret", "password_file", "/run/secrets/db", ""},
    {"how, and not what", "auth_type", "basic", ""},
    {"a name of a class", "architecture", "Qwen2VLForConditionalGeneration", ""},
    {"a name of a class", "class", "torch.nn.modules.linear.NonDynamicallyQuantizableLinear", ""},
    {"a commit", "git.commit", "b94dbcc0a1f2e3d4c5b6a7980123456789abcdef", ""},
    {"a commit in a text", "command_line", "t.py --rev b94dbcc0a1f2e3d4c5b6a7980123456789abcdef",
     ""},
    {"a hash", "data.sha256", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
     ""},
    {"a device", "gpu.uuid", "GPU-3f1c1a6e-8c4e-4c9b-9f1e-0a1b2c3d4e5f", ""},
    {"a platform", "platform", "Linux-6.1.0-18-amd64-x86_64-with-glibc2.36", ""},
    {"a checkpoint", "init_from", "ckpt/Llama-3.1-8B-Instruct-step001200-bf16.safetensors", ""},
    {"a checkpoint", "init_from", "hf_Llama2checkpoint/pytorch_model-00001-of-00002.bin", ""},
    {"an option that begins like a token", "command_line",
     "t.py --hf_checkpoint_path x --use-token --epochs 3", ""},
    {"a name that begins like a key", "optimizer", "sk-learn-pipelines-v2", ""},
    {"sizes on the command line", "command_line",
     "t.py --max-tokens 512 --tokens 2.5T --key-dim 64 --pass 2", ""},
    {"options without secrets", "command_line",
     "t.py --tokenizer gpt2 --author ann --num_passes 3 --bypass x", ""},
    {"a path", "data", "/data/C4/en.noblocklist/c4-train.00000-of-01024.json.gz", ""},
    {"a URL", "data", "https://host:8080/path@v2?version=3&key=en", ""},
    {"a clone", "data", "git+ssh://git@github.com/org/repo.git@v1.2", ""},
    {"hosts with ports", "data", "mongodb://h1:27017,h2:27017/db", ""},
    {"an address", "email", "someone@example.com", ""},
    {"a run", "run", "stc_baseline", ""},
    {"a page about webhooks", "docs", "https://x.org/webhooks/intro", ""},
    {"an exception about a key", "text", "KeyError: 'password'", ""},
    {"an exception about a token", "text",
     "ValueError: unknown token: 'foo'; expected key: lm_head.weight", ""},
    {"an exception about a login", "text", "AuthError: invalid credentials", ""},
    {"a line of a program", "text", "tokens = tokenizer(text); key = self.key(x); f(token=token)",
     ""},
    {"what is said about a bearer", "text",
     "bearer authentication failed; Basic LayerNorm is missing", ""},
    {"a shape", "text", "keys: [2, 3], token_type_ids: (4, 5), tokens=[1, 2]", ""},
    {"nothing", "empty", "", ""},
};

TEST(Redact, EveryValueOfTheTableIsKeptOrHiddenAsItSays) {
  static_assert(std::size(kCases) >= 100);
  int kept = 0, hidden = 0;
  for (const Case& one : kCases) {
    const std::string_view expected = *one.shown == '\0' ? one.value : one.shown;
    const std::string shown = RedactSetting(one.name, one.value);
    EXPECT_EQ(shown, expected) << one.reason << ": " << one.name << " = " << one.value;
    EXPECT_THAT(shown, Not(HasSubstr(kPlanted))) << one.reason;
    EXPECT_EQ(RedactSetting(one.name, shown), shown) << "the second time: " << one.reason;
    ++(*one.shown == '\0' ? kept : hidden);
  }
  EXPECT_GE(kept, 50);
  EXPECT_GE(hidden, 50);
}

TEST(Redact, ASecretIsHiddenInEverySurrounding) {
  for (const char* name :
       {"password", "db_pass", "hf_token", "api-key", "X-Auth-Token", "AWS_SECRET_ACCESS_KEY"}) {
    const std::string n = name;
    for (const std::string& text :
         {"--" + n + " " P, "--" + n + "=" P, n + "=" P, n + ": " P, n + " = \"" P "\"",
          "{\"" + n + "\":\"" P "\"}", "{'" + n + "': '" P "'}", "['--" + n + "', '" P "']",
          "('" + n + "', '" P "')", "x?" + n + "=" P "&y=1", "'--" + n + "=" P "'",
          "d['" + n + "'] = '" P "'", "f(" + n + "='" P "')", "a\n" + n + ": " P "\nb"}) {
      EXPECT_THAT(RedactText(text), Not(HasSubstr(kPlanted))) << text;
      EXPECT_THAT(RedactText("before " + text + " after"), HasSubstr("before ")) << text;
    }
  }
}

TEST(Redact, ASettingMayBeNamedByAnother) {
  const std::map<std::string, std::string> settings = {
      {"args.0", "train.py"},
      {"args.1", "--password"},
      {"args.10", P},
      {"args.2", P},
      {"args.3", "--use-token"},
      {"args.4", "gpt2"},
      {"args.5", "--lr"},
      {"args.6", "0.1"},
      {"args.9", "--hf-token"},
      {"env.0.name", "DB_PASSWORD"},
      {"env.0.value", P},
      {"env.1.name", "HOME"},
      {"env.1.value", "/root"},
  };
  std::set<std::string> hidden;
  for (const auto& [name, value] : StoredSettings(settings, 100)) {
    if (value == kRedacted)
      hidden.insert(name);
    else
      EXPECT_EQ(value, settings.at(name)) << name;
  }
  EXPECT_EQ(hidden, (std::set<std::string>{"args.2", "args.10", "env.0.value"}));
}

TEST(Redact, NoPartOfASecretIsLeftWhereATextIsCut) {
  const std::string filled(90, 'a');
  for (const std::string secret : {"https://user:" P "@host", "--password " P, "ghp_" P}) {
    const std::string text = filled + " " + secret;
    EXPECT_THAT(StoredText(text, 100), Not(HasSubstr("Zq"))) << text;
    EXPECT_THAT(StoredSettings({{"a", text}}, 100).at("a"), Not(HasSubstr("Zq"))) << text;
  }
  EXPECT_EQ(StoredText("a\nb", 100), "a\\x0ab");
  EXPECT_EQ(StoredText(std::string(200, 'a'), 100).size(), 103u);
}

TEST(Redact, TheRestOfAValueStays) {
  EXPECT_EQ(RedactText("a@b https://u:p@h https://v:q@i"), "a@b https://" R "@h https://" R "@i");
  EXPECT_EQ(RedactText("tcp://a:1,http://u:p@b"), "tcp://a:1,http://" R "@b");
}

TEST(Redact, HostileValuesEnd) {
  for (const char* piece :
       {"://", "@", "=", "Bearer ", "hf_", "sk-", "-----BEGIN ", "\xff", "aB1", "key=", "--token ",
        "'key':", "\\\"", "token:[", ",a", "https://a:b/", "/hooks/", "key=,", "Basic "}) {
    std::string value;
    while (value.size() < 32768) value += piece;
    (void)RedactSetting(value.substr(0, 300), value);
  }
}

}  // namespace
}  // namespace statcollect
