#include "server/query/settings/config_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/query/query.h"
#include "tests/server/query/run_writer.h"
#include "tests/support/fake_store.h"

namespace statcollect::query {
namespace {

using ::testing::ElementsAre;
using testing::FakeStore;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::Key;
using testing::RunWriter;

class ConfigReportTest : public ::testing::Test {
 protected:
  ConfigReportTest() : engine_(store_) {}
  void Write(const std::string& run, std::map<std::string, std::string> config,
             std::map<std::string, std::string> of_rank_1) {
    RunWriter writer(store_, run, 2);
    writer.Observe(0, 0, Key("x"), {.values = {1}}).Observe(1, 0, Key("x"), {.values = {1}});
    writer.Config(0, std::move(config)).Config(1, std::move(of_rank_1)).Commit();
  }
  void Write(const std::string& run, const std::map<std::string, std::string>& config) {
    Write(run, config, config);
  }
  std::vector<std::string> Keys(const ConfigReport& report) {
    std::vector<std::string> keys;
    for (const ConfigItem& item : report.items)
      keys.push_back(std::string(Name(item.category)) + " " + item.key);
    return keys;
  }
  FakeStore store_;
  QueryEngine engine_;
};

TEST_F(ConfigReportTest, ListsWhatDiffersMostLikelyCulpritsFirst) {
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
  auto report = engine_.CompareConfig({.run_a = "a", .run_b = "b"});
  ASSERT_TRUE(report.ok());
  EXPECT_FALSE(report->same);
  EXPECT_THAT(Keys(*report),
              ElementsAre("model model.ln_eps", "data seed", "optimizer lr",
                          "precision torch.default_dtype", "determinism torch.cudnn.benchmark",
                          "parallel tp_size", "versions torch.version", "environment env.HOME",
                          "other note"));
  EXPECT_EQ(report->differ, 9u);
  EXPECT_EQ(report->compared, 12u) << "with world size and host";
  EXPECT_EQ(engine_.CompareConfig({.run_a = "a", .run_b = "b", .all = true})->items.size(), 12u);
}

TEST_F(ConfigReportTest, ComparesNumbersByValueAndLeavesOutWhatAlwaysDiffers) {
  Write("base",
        {{"lr", "1e-3"}, {"fused", "True"}, {"pid", "7"}, {"command_line", "t.py --name base"}});
  Write("ort",
        {{"lr", "0.001"}, {"fused", "true"}, {"pid", "8"}, {"command_line", "t.py --name ort"}});
  const auto report = engine_.CompareConfig({.run_a = "base", .run_b = "ort"});
  EXPECT_TRUE(report->same);
  EXPECT_THAT(report->items, IsEmpty());
  Write("baseline", {{"command_line", "t.py --name baseline --bug"}});
  EXPECT_FALSE(engine_.CompareConfig({.run_a = "base", .run_b = "baseline"})->same);
  Write("train", {{"command_line", "train.py"}});
  Write("again", {{"command_line", "train.py"}});
  EXPECT_TRUE(engine_.CompareConfig({.run_a = "train", .run_b = "again"})->same)
      << "a run named as its script";
}

TEST_F(ConfigReportTest, SettingOfOneRunAloneDiffers) {
  Write("a", {{"lr", "1"}});
  Write("b", {{"momentum", "0"}});
  const auto report = engine_.CompareConfig({.run_a = "a", .run_b = "b"});
  ASSERT_EQ(report->items.size(), 2u);
  EXPECT_EQ(report->items[0].b, std::nullopt);
  EXPECT_EQ(report->items[1].a, std::nullopt);
}

TEST_F(ConfigReportTest, OneRunIsPrintedWithEverythingStored) {
  Write("a", {{"lr", "1"}, {"pid", "7"}});
  const auto report = engine_.CompareConfig({.run_a = "a", .run_b = ""});
  EXPECT_TRUE(report->same);
  EXPECT_THAT(Keys(*report),
              ElementsAre("optimizer lr", "parallel world_size", "environment host", "other pid"));
}

TEST_F(ConfigReportTest, AResumedRunsScheduleIsNoDifference) {
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
  EXPECT_THAT(Keys(*engine_.CompareConfig({.run_a = "base", .run_b = "resumed"})), IsEmpty());
  EXPECT_THAT(engine_.Diff({.run_a = "base", .run_b = "resumed"}, {}, {})->inputs.config,
              IsEmpty());
  launch("resumed", "0.025", 7, "16");
  EXPECT_THAT(Keys(*engine_.CompareConfig({.run_a = "base", .run_b = "resumed"})),
              ElementsAre("data batch_size"))
      << "what no schedule changes is compared as it is now";
  launch("wrong", "0.1", 0);
  launch("wrong", "0.025", 5);
  EXPECT_THAT(Keys(*engine_.CompareConfig({.run_a = "base", .run_b = "wrong"})),
              ElementsAre("optimizer optimizer.group0.lr"));
  launch("late", "0.025", 5);
  const auto late = engine_.CompareConfig({.run_a = "base", .run_b = "late"});
  EXPECT_TRUE(late->same);
  EXPECT_THAT(late->notes,
              ElementsAre(HasSubstr("launched at different steps and a schedule changes it: "
                                    "optimizer.group0.lr")));
}

TEST_F(ConfigReportTest, AnImportHasNoConfigurationToCompareWith) {
  Write("base", {{"lr", "1"}, {"model.layers", "2"}, {"seed", "3"}});
  Write("dump", {{"import.format", "ort"}, {"import.path", "/tmp/a"}});
  Write("again", {{"import.format", "ort"}, {"import.path", "/tmp/b"}});
  for (const auto& [a, b] : {std::pair("base", "dump"), std::pair("dump", "base")}) {
    const auto report = engine_.CompareConfig({.run_a = a, .run_b = b});
    EXPECT_THAT(report->items, IsEmpty()) << "no row for each setting that only one can have";
    EXPECT_EQ(report->compared, 1u) << "the world size; host and version are those of the import";
    EXPECT_THAT(report->notes,
                ElementsAre("dump has no recorded configuration; the 3 settings of base were "
                            "not compared"));
    const auto diff = engine_.Diff({.run_a = a, .run_b = b}, {}, {});
    EXPECT_THAT(diff->inputs.config, IsEmpty());
    EXPECT_THAT(diff->notes, ::testing::Contains(HasSubstr("dump has no recorded configuration")));
  }
  EXPECT_THAT(engine_.CompareConfig({.run_a = "dump", .run_b = "again"})->items, IsEmpty());
}

TEST_F(ConfigReportTest, StateOfRandomNumbersCountsOnlyUnderTheSameSeed) {
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
    return Keys(*engine_.CompareConfig({.run_a = run + "a", .run_b = run + "b"}));
  };
  EXPECT_THAT(differ("1", "1"), ElementsAre("data random.torch.state"));
  EXPECT_THAT(differ("1", "2"), ElementsAre("data random.torch.seed"));
  EXPECT_THAT(differ("none", "none"), IsEmpty())
      << "nobody set a seed: it differs in any two launches";
}

TEST_F(ConfigReportTest, SumsOfAModelStandBehindWhatExplainsThem) {
  const std::map<std::string, std::string> base = {{"model.parameters", "7"},
                                                   {"model.structure", "ab"},
                                                   {"module.blocks.*.ln1.eps", "1"},
                                                   {"optimizer.group0.elements", "7"},
                                                   {"optimizer.group0.lr", "1"}};
  auto other = base;
  for (auto& [key, value] : other) value += "0";
  Write("a", base);
  Write("b", other);
  EXPECT_THAT(Keys(*engine_.CompareConfig({.run_a = "a", .run_b = "b"})),
              ElementsAre("model module.blocks.*.ln1.eps", "model model.parameters",
                          "model model.structure", "optimizer optimizer.group0.lr",
                          "optimizer optimizer.group0.elements"));
}

TEST_F(ConfigReportTest, RanksMayDrawDifferentRandomNumbers) {
  Write("a", {{"random.torch.seed", "1"}}, {{"random.torch.seed", "2"}});
  EXPECT_THAT(engine_.CompareConfig({.run_a = "a", .run_b = ""})->notes, IsEmpty());
}

TEST_F(ConfigReportTest, RanksThatWereToldDifferentThingsAreRemarked) {
  Write("a", {{"lr", "0.1"}, {"local_rank", "0"}, {"x", "1"}},
        {{"lr", "0.2"}, {"local_rank", "1"}});
  const auto report = engine_.CompareConfig({.run_a = "a", .run_b = ""});
  ASSERT_EQ(report->notes.size(), 2u);
  EXPECT_THAT(report->notes[0], HasSubstr("lr is '0.1' on rank 0, '0.2' on rank 1"));
  EXPECT_THAT(report->notes[1], HasSubstr("x is '1' on rank 0, not set on 1"));
}

TEST(CategoryOf, JudgesByTheWordsOfTheKey) {
  const std::map<std::string_view, ConfigCategory> expected = {
      {"model.dtype", ConfigCategory::kPrecision},
      {"model.width", ConfigCategory::kModel},
      {"numHiddenLayers", ConfigCategory::kModel},
      {"optimizer.eps", ConfigCategory::kOptimizer},
      {"layer_norm_eps", ConfigCategory::kModel},
      {"gradient_accumulation_steps", ConfigCategory::kOptimizer},
      {"train.batch_size", ConfigCategory::kData},
      {"env.PYTHONHASHSEED", ConfigCategory::kDeterminism},
      {"env.OMP_NUM_THREADS", ConfigCategory::kEnvironment},
      {"env.CUBLAS_WORKSPACE_CONFIG", ConfigCategory::kDeterminism},
      {"env.HCCL_DETERMINISTIC", ConfigCategory::kDeterminism},
      {"env.HCCL_ALGO", ConfigCategory::kParallel},
      {"env.NVIDIA_TF32_OVERRIDE", ConfigCategory::kPrecision},
      {"torch.float32_matmul_precision", ConfigCategory::kPrecision},
      {"torch.deterministic_algorithms", ConfigCategory::kDeterminism},
      {"tensor_model_parallel_size", ConfigCategory::kParallel},
      {"git.commit", ConfigCategory::kVersions},
      {"command_line", ConfigCategory::kEnvironment},
      {"module.tp_rank.driver.eps", ConfigCategory::kModel},
      {"module.blocks.*.ln1.dtype", ConfigCategory::kPrecision},
      {"model.config.hidden_size", ConfigCategory::kModel},
      {"model.config.torch_dtype", ConfigCategory::kPrecision},
      {"model.dtypes", ConfigCategory::kPrecision},
      {"optimizer.group0.weight_decay", ConfigCategory::kOptimizer},
      {"torch.autocast.cpu", ConfigCategory::kPrecision},
      {"torch.sdp.flash", ConfigCategory::kPrecision},
      {"torch.cuda.matmul.allow_tf32", ConfigCategory::kPrecision},
      {"torch.deterministic.fill_uninitialized_memory", ConfigCategory::kDeterminism},
      {"random.numpy.seed", ConfigCategory::kData},
      {"parallel.ddp.static_graph", ConfigCategory::kParallel},
      {"gpu.driver.version", ConfigCategory::kVersions},
      {"git.diff", ConfigCategory::kVersions},
      {"hardware.gpu", ConfigCategory::kEnvironment},
      {"torch.cpu_capability", ConfigCategory::kEnvironment},
      {"", ConfigCategory::kOther},
  };
  for (const auto& [key, category] : expected) EXPECT_EQ(CategoryOf(key), category) << key;
}

}  // namespace
}  // namespace statcollect::query
