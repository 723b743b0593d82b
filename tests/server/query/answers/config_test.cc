#include "server/query/answers/config.h"

#include <cctype>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/query/query.h"
#include "tests/server/query/ask.h"
#include "tests/server/query/premises.h"
#include "tests/server/query/run_writer.h"
#include "tests/support/fake_store.h"

namespace statcollect::query {
namespace {

using testing::Ask;
using ::testing::ElementsAre;
using testing::FakeStore;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::Key;
using testing::RunWriter;

class ConfigTest : public ::testing::Test {
 protected:
  ConfigTest() : engine_(store_) {}
  void Write(const std::string& run, std::map<std::string, std::string> config,
             std::map<std::string, std::string> of_rank_1) {
    RunWriter writer(store_, run, 2);
    writer.Observe(0, 0, Key("x"), {.values = {1}}).Observe(1, 0, Key("x"), {.values = {1}});
    writer.Config(0, std::move(config)).Config(1, std::move(of_rank_1)).Commit();
  }
  void Write(const std::string& run, const std::map<std::string, std::string>& config) {
    Write(run, config, config);
  }
  // "optimizer lr", in order.
  static std::vector<std::string> Keys(const v1::ConfigReport& report) {
    std::vector<std::string> keys;
    for (const v1::ConfigItem& item : report.items())
      keys.push_back(NameOf(item.category()) + " " + item.key());
    return keys;
  }
  static std::string NameOf(v1::ConfigCategory category) {
    std::string name;
    for (const char c : v1::ConfigCategory_Name(category).substr(sizeof "CONFIG_CATEGORY_" - 1))
      name += static_cast<char>(std::tolower(c));
    return name;
  }
  Result<v1::ConfigReport> Compare(const ConfigRequest& request) {
    return Ask(engine_, CompareConfig, request);
  }
  FakeStore store_;
  QueryEngine engine_;
};

TEST_F(ConfigTest, ListsWhatDiffersMostLikelyCulpritsFirst) {
  const std::map<std::string, std::string> base = {{"model.ln_eps", "1e-5"},
                                                   {"lr", "0.1"},
                                                   {"seed", "1"},
                                                   {"torch.version", "2.5"},
                                                   {"torch.default_dtype", "f32"},
                                                   {"env.HOME", "/a"},
                                                   {"tp_size", "1"},
                                                   {"note", "x"},
                                                   {"torch.cudnn.benchmark", "0"},
                                                   {"same.for_all", "yes"}};
  auto other = base;
  for (auto& [key, value] : other) value = key == "same.for_all" ? value : value + "9";
  Write("a", base);
  Write("b", other);
  auto report = Compare({.run_a = "a", .run_b = "b"});
  ASSERT_TRUE(report.ok());
  EXPECT_FALSE(report->same());
  EXPECT_THAT(Keys(*report),
              ElementsAre("model model.ln_eps", "data seed", "optimizer lr",
                          "precision torch.default_dtype", "determinism torch.cudnn.benchmark",
                          "parallel tp_size", "versions torch.version", "environment env.HOME",
                          "other note"));
  EXPECT_EQ(report->differ(), 9u);
  EXPECT_EQ(report->compared(), 12u) << "with world size and host";
  EXPECT_EQ(Compare({.run_a = "a", .run_b = "b", .all = true})->items_size(), 12);
}

TEST_F(ConfigTest, ComparesNumbersByValueAndLeavesOutWhatAlwaysDiffers) {
  Write("base",
        {{"lr", "1e-3"}, {"fused", "True"}, {"pid", "7"}, {"command_line", "t.py --name base"}});
  Write("ort",
        {{"lr", "0.001"}, {"fused", "true"}, {"pid", "8"}, {"command_line", "t.py --name ort"}});
  const auto report = Compare({.run_a = "base", .run_b = "ort"});
  EXPECT_TRUE(report->same());
  EXPECT_THAT(report->items(), IsEmpty());
  Write("baseline", {{"command_line", "t.py --name baseline --bug"}});
  EXPECT_FALSE(Compare({.run_a = "base", .run_b = "baseline"})->same());
  Write("train", {{"command_line", "train.py"}});
  Write("again", {{"command_line", "train.py"}});
  EXPECT_TRUE(Compare({.run_a = "train", .run_b = "again"})->same()) << "a run named as its script";
}

TEST_F(ConfigTest, SettingOfOneRunAloneDiffers) {
  Write("a", {{"lr", "1"}});
  Write("b", {{"momentum", "0"}});
  const auto report = Compare({.run_a = "a", .run_b = "b"});
  ASSERT_EQ(report->items_size(), 2);
  EXPECT_FALSE(report->items(0).has_b());
  EXPECT_FALSE(report->items(1).has_a());
}

TEST_F(ConfigTest, OneRunIsPrintedWithEverythingStored) {
  Write("a", {{"lr", "1"}, {"pid", "7"}});
  const auto report = Compare({.run_a = "a", .run_b = ""});
  EXPECT_TRUE(report->same());
  EXPECT_THAT(Keys(*report),
              ElementsAre("optimizer lr", "parallel world_size", "environment host", "other pid"));
}

TEST_F(ConfigTest, AResumedRunsScheduleIsNoDifference) {
  // Both trained steps 0..9 with the same schedule; `resumed` was launched again at step 5.
  const auto launch = [&](const std::string& run, const std::string& lr, std::uint64_t from,
                          const std::string& batch_size = "8") {
    RunWriter writer(store_, run);
    for (std::uint64_t step = from; step < 10; ++step)
      writer.Observe(0, step, Key("x"), {.values = {1}});
    writer
        .Config(
            0,
            {{"optimizer.group0.lr", lr}, {"optimizer.class", "SGD"}, {"batch_size", batch_size}})
        .Commit();
  };
  launch("base", "0.05", 0);
  launch("resumed", "0.05", 0);
  launch("resumed", "0.025", 5);
  EXPECT_THAT(Keys(*Compare({.run_a = "base", .run_b = "resumed"})), IsEmpty());
  EXPECT_THAT(engine_.Diff({.run_a = "base", .run_b = "resumed"}, {}, {})->inputs.config,
              IsEmpty());
  launch("resumed", "0.025", 7, "16");
  EXPECT_THAT(Keys(*Compare({.run_a = "base", .run_b = "resumed"})), ElementsAre("data batch_size"))
      << "what no schedule changes is compared as it is now";
  launch("wrong", "0.1", 0);
  launch("wrong", "0.025", 5);
  EXPECT_THAT(Keys(*Compare({.run_a = "base", .run_b = "wrong"})),
              ElementsAre("optimizer optimizer.group0.lr"));
  launch("late", "0.025", 5);
  const auto late = Compare({.run_a = "base", .run_b = "late"});
  EXPECT_TRUE(late->same());
  EXPECT_THAT(late->notes(),
              ElementsAre(HasSubstr("launched at different steps and a schedule changes it: "
                                    "optimizer.group0.lr")));
}

TEST_F(ConfigTest, AnImportHasNoConfigurationToCompareWith) {
  Write("base", {{"lr", "1"}, {"model.layers", "2"}, {"seed", "3"}});
  Write("dump", {{"import.format", "ort"}, {"import.path", "/tmp/a"}});
  Write("again", {{"import.format", "ort"}, {"import.path", "/tmp/b"}});
  for (const auto& [a, b] : {std::pair("base", "dump"), std::pair("dump", "base")}) {
    const auto report = Compare({.run_a = a, .run_b = b});
    EXPECT_THAT(report->items(), IsEmpty()) << "no row for each setting that only one can have";
    EXPECT_EQ(report->compared(), 1u) << "the world size; host and version are those of the import";
    EXPECT_THAT(report->notes(),
                ElementsAre("dump has no recorded configuration; the 3 settings of base were "
                            "not compared"));
    const auto diff = engine_.Diff({.run_a = a, .run_b = b}, {}, {});
    EXPECT_THAT(diff->inputs.config, IsEmpty());
    EXPECT_THAT(testing::Broken(*diff),
                ::testing::Contains(HasSubstr("dump has no recorded configuration")));
  }
  EXPECT_THAT(Compare({.run_a = "dump", .run_b = "again"})->items(), IsEmpty());
}

TEST_F(ConfigTest, StateOfRandomNumbersCountsOnlyUnderTheSameSeed) {
  const auto differ = [&](const std::string& seed_a, const std::string& seed_b) {
    const std::string run = "r" + seed_a + seed_b;
    const auto settings = [](const std::string& seed, const std::string& state) {
      return std::map<std::string, std::string>{{"random.torch.seed", seed},
                                                {"random.torch.state", state},
                                                {"random.python.state", state},
                                                {"random.numpy.state", state}};
    };
    Write(run + "a", settings(seed_a, "aa"));
    Write(run + "b", settings(seed_b, "bb"));
    return Keys(*Compare({.run_a = run + "a", .run_b = run + "b"}));
  };
  EXPECT_THAT(differ("1", "1"), ElementsAre("data random.torch.state"));
  EXPECT_THAT(differ("1", "2"), ElementsAre("data random.torch.seed"));
  EXPECT_THAT(differ("none", "none"), IsEmpty())
      << "nobody set a seed: it differs in any two launches";
}

TEST_F(ConfigTest, SumsOfAModelStandBehindWhatExplainsThem) {
  const std::map<std::string, std::string> base = {{"model.parameters", "7"},
                                                   {"model.structure", "ab"},
                                                   {"module.blocks.*.ln1.eps", "1"},
                                                   {"optimizer.group0.elements", "7"},
                                                   {"optimizer.group0.lr", "1"}};
  auto other = base;
  for (auto& [key, value] : other) value += "0";
  Write("a", base);
  Write("b", other);
  EXPECT_THAT(Keys(*Compare({.run_a = "a", .run_b = "b"})),
              ElementsAre("model module.blocks.*.ln1.eps", "model model.parameters",
                          "model model.structure", "optimizer optimizer.group0.lr",
                          "optimizer optimizer.group0.elements"));
}

TEST_F(ConfigTest, RanksMayDrawDifferentRandomNumbers) {
  Write("a", {{"random.torch.seed", "1"}}, {{"random.torch.seed", "2"}});
  EXPECT_THAT(Compare({.run_a = "a", .run_b = ""})->notes(), IsEmpty());
}

TEST_F(ConfigTest, RanksThatWereToldDifferentThingsAreRemarked) {
  Write("a", {{"lr", "0.1"}, {"local_rank", "0"}, {"x", "1"}},
        {{"lr", "0.2"}, {"local_rank", "1"}});
  const auto report = Compare({.run_a = "a", .run_b = ""});
  ASSERT_EQ(report->notes_size(), 2);
  EXPECT_THAT(report->notes(0), HasSubstr("lr is '0.1' on rank 0, '0.2' on rank 1"));
  EXPECT_THAT(report->notes(1), HasSubstr("x is '1' on rank 0, not set on 1"));
}

TEST(CategoryOf, JudgesByTheWordsOfTheKey) {
  const std::map<std::string_view, v1::ConfigCategory> expected = {
      {"model.dtype", v1::CONFIG_CATEGORY_PRECISION},
      {"model.width", v1::CONFIG_CATEGORY_MODEL},
      {"numHiddenLayers", v1::CONFIG_CATEGORY_MODEL},
      {"optimizer.eps", v1::CONFIG_CATEGORY_OPTIMIZER},
      {"layer_norm_eps", v1::CONFIG_CATEGORY_MODEL},
      {"gradient_accumulation_steps", v1::CONFIG_CATEGORY_OPTIMIZER},
      {"train.batch_size", v1::CONFIG_CATEGORY_DATA},
      {"env.PYTHONHASHSEED", v1::CONFIG_CATEGORY_DETERMINISM},
      {"env.OMP_NUM_THREADS", v1::CONFIG_CATEGORY_ENVIRONMENT},
      {"env.CUBLAS_WORKSPACE_CONFIG", v1::CONFIG_CATEGORY_DETERMINISM},
      {"env.HCCL_DETERMINISTIC", v1::CONFIG_CATEGORY_DETERMINISM},
      {"env.HCCL_ALGO", v1::CONFIG_CATEGORY_PARALLEL},
      {"env.NVIDIA_TF32_OVERRIDE", v1::CONFIG_CATEGORY_PRECISION},
      {"torch.float32_matmul_precision", v1::CONFIG_CATEGORY_PRECISION},
      {"torch.deterministic_algorithms", v1::CONFIG_CATEGORY_DETERMINISM},
      {"tensor_model_parallel_size", v1::CONFIG_CATEGORY_PARALLEL},
      {"git.commit", v1::CONFIG_CATEGORY_VERSIONS},
      {"command_line", v1::CONFIG_CATEGORY_ENVIRONMENT},
      {"module.tp_rank.driver.eps", v1::CONFIG_CATEGORY_MODEL},
      {"module.blocks.*.ln1.dtype", v1::CONFIG_CATEGORY_PRECISION},
      {"model.config.hidden_size", v1::CONFIG_CATEGORY_MODEL},
      {"model.config.torch_dtype", v1::CONFIG_CATEGORY_PRECISION},
      {"model.dtypes", v1::CONFIG_CATEGORY_PRECISION},
      {"optimizer.group0.weight_decay", v1::CONFIG_CATEGORY_OPTIMIZER},
      {"torch.autocast.cpu", v1::CONFIG_CATEGORY_PRECISION},
      {"torch.sdp.flash", v1::CONFIG_CATEGORY_PRECISION},
      {"torch.cuda.matmul.allow_tf32", v1::CONFIG_CATEGORY_PRECISION},
      {"torch.deterministic.fill_uninitialized_memory", v1::CONFIG_CATEGORY_DETERMINISM},
      {"random.numpy.seed", v1::CONFIG_CATEGORY_DATA},
      {"parallel.ddp.static_graph", v1::CONFIG_CATEGORY_PARALLEL},
      {"gpu.driver.version", v1::CONFIG_CATEGORY_VERSIONS},
      {"git.diff", v1::CONFIG_CATEGORY_VERSIONS},
      {"hardware.gpu", v1::CONFIG_CATEGORY_ENVIRONMENT},
      {"torch.cpu_capability", v1::CONFIG_CATEGORY_ENVIRONMENT},
      {"", v1::CONFIG_CATEGORY_OTHER},
  };
  for (const auto& [key, category] : expected) EXPECT_EQ(CategoryOf(key), category) << key;
}

}  // namespace
}  // namespace statcollect::query
