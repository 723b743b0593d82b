// The parts of an export that need no collector: numbers, names, texts, files in their place.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/exports/exporter.h"
#include "client/exports/ort_text.h"
#include "client/exports/output.h"
#include "client/exports/records_decoder.h"
#include "client/exports/text.h"
#include "common/csv.h"

namespace statcollect::client {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// --- text

std::string DoubleText(double value) {
  std::string text;
  AppendDouble(value, text);
  return text;
}

TEST(ExportText, DoublesReadBackAsTheSameBits) {
  EXPECT_EQ(DoubleText(0.1), "0.1");
  EXPECT_EQ(DoubleText(-0.0), "-0");
  EXPECT_EQ(DoubleText(kNaN), "NaN");
  EXPECT_EQ(DoubleText(-kInfinity), "-Infinity");
  std::mt19937_64 rng(7);
  for (int i = 0; i < 20'000; ++i) {
    const double value = std::bit_cast<double>(rng());
    if (!std::isfinite(value)) continue;
    for (const std::string& text : {DoubleText(value), PythonFloat(value)})
      ASSERT_EQ(std::bit_cast<std::uint64_t>(std::strtod(text.c_str(), nullptr)),
                std::bit_cast<std::uint64_t>(value))
          << text;
  }
}

TEST(ExportText, FloatsLookAsPythonPrintsThem) {
  EXPECT_EQ(PythonFloat(1), "1.0");
  EXPECT_EQ(PythonFloat(1e-5), "1e-05");
  EXPECT_EQ(PythonFloat(0.0001), "0.0001");
  EXPECT_EQ(PythonFloat(1e16), "1e+16");
  EXPECT_EQ(PythonFloat(1234567890123456), "1234567890123456.0");
  EXPECT_EQ(PythonFloat(-1.1586183309555054), "-1.1586183309555054");
  EXPECT_EQ(PythonFloat(-kInfinity), "-inf");
  EXPECT_EQ(PythonFloat(std::numeric_limits<double>::denorm_min()), "5e-324");
}

TEST(ExportText, StringsAreEscaped) {
  std::string json, csv;
  AppendJsonString("a\"b\\c\xc3\xa9\xf0\x9f\x98\x80\n", json);
  EXPECT_EQ(json, "\"a\\\"b\\\\c\\u00e9\\ud83d\\ude00\\u000a\"");
  AppendCsvField("plain", csv);
  csv += ' ';
  AppendCsvField("a,\"b\"\n", csv);
  EXPECT_EQ(csv, "plain \"a,\"\"b\"\"\n\"");
}

// --- ONNX Runtime's names and text

TensorKey Key(std::string name, std::string path = "", std::uint32_t micro_batch = 0,
              std::uint32_t call = 0, Mode mode = Mode::kTrain) {
  return {.name = std::move(name),
          .kind = Kind::kOutput,
          .output_path = std::move(path),
          .micro_batch = micro_batch,
          .call = call,
          .mode = mode};
}

TEST(OrtLabel, IsTheNameItselfWhereThatIsAFileName) {
  EXPECT_EQ(OrtLabel(Key("Linear_7_0th_output")), "Linear_7_0th_output");
  EXPECT_EQ(OrtLabel(Key("blocks.1.ln2", "0", 1, 2, Mode::kEval)),
            "blocks.1.ln2[0]@mb1@call2@eval");
  EXPECT_EQ(OrtLabel(Key("a/b")), "a%2Fb");
  EXPECT_EQ(OrtLabel(Key("..")), "%2E.");
  EXPECT_EQ(OrtLabel(Key(">x")), "%3Ex");
}

TEST(OrtLabel, LeadsBackToTheIdentity) {
  for (const TensorKey& key :
       {Key("a"), Key("../../etc/passwd"), Key("100%", "x]y", 3), Key("a@mb1[0]"),
        Key(".hidden", "/", 0, 9), Key("\xc3\xa9\xf0\x9f\x98\x80 with blanks"),
        Key("w", "0.past", 12, 34, Mode::kInit), Key("e", "", 0, 0, Mode::kEval)}) {
    const std::string label = OrtLabel(key);
    EXPECT_EQ(label.find('/'), std::string::npos) << label;
    TensorKey back{.kind = Kind::kOutput};
    ASSERT_TRUE(ParseOrtLabel(label, back)) << label;
    EXPECT_TRUE(back == key) << label;
  }
  TensorKey key;
  for (const char* wrong :
       {"", "[0]", "a[0", "a%", "a%zz", "a@", "a@mb", "a@call1@mb1", "a@evals", "a%0Ab", "a[%1B]"})
    EXPECT_FALSE(ParseOrtLabel(wrong, key)) << wrong;
}

TEST(OrtLabel, LongNamesStayFileNamesAndApart) {
  const std::string one = OrtLabel(Key(std::string(1000, 'x') + "1")),
                    other = OrtLabel(Key(std::string(1000, 'x') + "2"));
  EXPECT_LE(one.size(), 240u);
  EXPECT_NE(one, other);
  std::string wide;
  while (wide.size() < 900) wide += "\xc3\xa9%";
  const std::string cut = OrtLabel(Key(wide));
  EXPECT_LE(cut.size(), 240u);
  const std::string kept = cut.substr(0, cut.find("%~"));
  EXPECT_TRUE(kept.ends_with("%25") || kept.ends_with("\xa9")) << kept;
}

struct Sample {
  TensorDef def{.key = Key("Linear_1_0th_output"), .depth = 2};
  Layout layout{.dtype = DType::kF32, .shape = {4, 16}};
  TensorStats stats{.numel = 64,
                    .zero = 1,
                    .neg = 30,
                    .pos = 33,
                    .has_finite = true,
                    .min = -1.5,
                    .max = 1.25,
                    .mean = 0.5,
                    .std = 2,
                    .l1 = 1,
                    .l2 = 1,
                    .hash = 5};
  std::vector<double> samples = {0.1, -2.5};
  Observation Get() {
    return {.rank = 0,
            .step = 0,
            .order = 0,
            .def = &def,
            .layout = &layout,
            .stats = &stats,
            .sketch = {},
            .samples = samples};
  }
};

TEST(OrtText, FollowsTheGrammarToTheLastBlank) {
  Sample sample;
  EXPECT_EQ(
      OrtText(sample.Get(), "Linear_1_0th_output"),
      ">>Linear_1_0th_output forward run shape: torch.Size([4, 16]) dtype: torch.float32 size: "
      "torch.Size([64]) \n"
      "min: -1.5 max: 1.25, mean: 0.5, std: 2.0158105227158787 \n"
      "nan: 0, inf: 0\n"
      "samples(top 128): tensor([ 0.100000, -2.500000])\n"
      "neg: 30, pos: 33, zero: 1,\n"
      "================\n");
}

TEST(OrtText, SpeaksOfAllElementsNotOfTheFiniteOnes) {
  Sample sample;
  sample.def.depth = -1;
  sample.stats.neg_inf = 2;
  sample.stats.neg -= 2;
  std::string text = OrtText(sample.Get(), "x");
  EXPECT_THAT(text, HasSubstr("min: -inf max: 1.25, mean: -inf, std: nan \nnan: 0, inf: 2\n"));
  EXPECT_THAT(text, HasSubstr("neg: 30, pos: 33, zero: 1,\n")) << "infinities have a sign";
  EXPECT_EQ(text.substr(0, 2), "x ");
  sample.stats.pos_inf = 1;
  sample.stats.pos -= 1;
  EXPECT_THAT(OrtText(sample.Get(), "x"),
              HasSubstr("min: -inf max: inf, mean: nan, std: nan \nnan: 0, inf: 3\n"));
  sample.stats.nan = 1;
  EXPECT_THAT(OrtText(sample.Get(), "x"),
              HasSubstr("min: nan max: nan, mean: nan, std: nan \nnan: 1, inf: 3\n"));
}

TEST(OrtText, OneElementHasNoSampleStdAndIntegersNoPoint) {
  Sample sample;
  sample.layout = {.dtype = DType::kI64, .shape = {}};
  sample.stats = {
      .numel = 1, .neg = 1, .has_finite = true, .min = -7, .max = -7, .mean = -7, .l1 = 7, .l2 = 7};
  sample.samples = {-7};
  EXPECT_EQ(
      OrtText(sample.Get(), "x"),
      ">>x forward run shape: torch.Size([]) dtype: torch.int64 size: torch.Size([1]) \n"
      "min: -7 max: -7, mean: -7.0, std: nan \nnan: 0, inf: 0\nsamples(top 128): tensor([-7])\n"
      "neg: 1, pos: 0, zero: 0,\n================\n");
}

TEST(OrtText, SaysWhatARecordOfAnotherToolLacks) {
  Sample sample;
  EXPECT_EQ(OrtLacks(sample.Get()), "");
  sample.layout.absent = BitOf(Statistic::kMean);
  EXPECT_EQ(OrtLacks(sample.Get()), "");
  EXPECT_THAT(OrtText(sample.Get(), "x"), HasSubstr("mean: nan, std: 2.0"));
  sample.layout.absent = BitOf(Statistic::kZero);
  EXPECT_EQ(OrtLacks(sample.Get()), "counts");
  sample.layout.absent = BitOf(Statistic::kShape);
  EXPECT_EQ(OrtLacks(sample.Get()), "its shape");
}

// --- absent and untrusted statistics

TEST(Numbers, AreAbsentWithoutFiniteElementsAndWhereTheToolDoesNotTell) {
  Sample sample;
  EXPECT_EQ(NumbersOf(sample.Get()).mean, 0.5);
  sample.stats.has_finite = false;
  EXPECT_FALSE(NumbersOf(sample.Get()).mean.has_value());
  EXPECT_EQ(NumbersOf(sample.Get()).nan, 0u);
  sample.layout.absent = BitOf(Statistic::kNan) | BitOf(Statistic::kInfSign);
  sample.layout.untrusted = BitOf(Statistic::kStd) | BitOf(Statistic::kL2);
  sample.stats.pos_inf = 4;
  const Numbers n = NumbersOf(sample.Get());
  EXPECT_FALSE(n.nan.has_value() || n.pos_inf.has_value() || n.neg_inf.has_value());
  EXPECT_EQ(n.inf, 4u);
  EXPECT_EQ(UntrustedOf(sample.layout), "std l2");
}

// --- files in their place

class Output : public ::testing::Test {
 protected:
  Output() : folder_(fs::temp_directory_path() / ("statctl_output_" + std::to_string(getpid()))) {
    fs::create_directory(folder_);
  }
  ~Output() override { fs::remove_all(folder_); }
  std::string Path(const std::string& name) const { return folder_ / name; }
  static std::string Read(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_))
      names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }
  static bool IsStep(std::string_view name) { return name.starts_with("step_"); }

  const fs::path folder_;
};

TEST_F(Output, AppearsUnderItsNameAtTheEndAndOnlyThen) {
  {
    auto partial = Partial::File(Path("a"), false);
    ASSERT_TRUE(partial.ok());
    ASSERT_TRUE(WriteNewFile(partial->path(), "half").ok());
    EXPECT_FALSE(fs::exists(Path("a")));
  }
  EXPECT_THAT(Names(), ElementsAre()) << "what was not finished goes";
  auto partial = Partial::File(Path("a"), false);
  ASSERT_TRUE(WriteNewFile(partial->path(), "whole").ok());
  ASSERT_TRUE(partial->Commit().ok());
  EXPECT_THAT(Names(), ElementsAre("a"));
  EXPECT_EQ(Read(Path("a")), "whole");
}

TEST_F(Output, NothingIsReplacedUnasked) {
  ASSERT_TRUE(WriteNewFile(Path("a"), "mine").ok());
  EXPECT_EQ(Partial::File(Path("a"), false).status().code(), Code::kAlreadyExists);
  auto replacing = Partial::File(Path("a"), true);
  ASSERT_TRUE(replacing.ok());
  ASSERT_TRUE(WriteNewFile(replacing->path(), "new").ok());
  ASSERT_TRUE(replacing->Commit().ok());
  EXPECT_EQ(Read(Path("a")), "new");
  // Created by another process while the export ran.
  auto late = Partial::File(Path("b"), false);
  ASSERT_TRUE(WriteNewFile(late->path(), "export").ok());
  ASSERT_TRUE(WriteNewFile(Path("b"), "somebody's").ok());
  EXPECT_EQ(late->Commit().code(), Code::kAlreadyExists);
  EXPECT_EQ(Read(Path("b")), "somebody's");
}

TEST_F(Output, OverwritesNeitherDevicesNorFoldersAsFiles) {
  EXPECT_EQ(Partial::File(Path(""), true).status().code(), Code::kInvalidArgument);
  ASSERT_EQ(mkfifo(Path("fifo").c_str(), 0600), 0);
  EXPECT_EQ(Partial::File(Path("fifo"), true).status().code(), Code::kAlreadyExists);
  ASSERT_TRUE(MakeFolder(Path("folder")).ok());
  EXPECT_EQ(Partial::File(Path("folder"), true).status().code(), Code::kInvalidArgument);
}

TEST_F(Output, AFolderIsReplacedOnlyIfAnExportMadeIt) {
  ASSERT_TRUE(MakeFolder(Path("dump")).ok());
  ASSERT_TRUE(MakeFolder(Path("dump/step_0")).ok());
  EXPECT_EQ(Partial::Folder(Path("dump/"), false, IsStep, "step_<k>").status().code(),
            Code::kAlreadyExists);
  {
    auto partial = Partial::Folder(Path("dump/"), true, IsStep, "step_<k>");
    ASSERT_TRUE(partial.ok()) << partial.status().message();
    ASSERT_TRUE(MakeFolder(partial->path() + "/step_7").ok());
    ASSERT_TRUE(partial->Commit().ok());
  }
  EXPECT_TRUE(fs::exists(Path("dump/step_7")));
  EXPECT_FALSE(fs::exists(Path("dump/step_0")));
  EXPECT_THAT(Names(), ElementsAre("dump"));
  ASSERT_TRUE(WriteNewFile(Path("dump/thesis.tex"), "years of work").ok());
  const auto refused = Partial::Folder(Path("dump"), true, IsStep, "step_<k> folders only");
  EXPECT_EQ(refused.status().code(), Code::kAlreadyExists);
  EXPECT_THAT(refused.status().message(), HasSubstr("found 'thesis.tex'"));
}

TEST_F(Output, AFullDiskIsSaidWithThePath) {
  auto full = FileWriter::Create(Path("x"));
  ASSERT_TRUE(full.ok());
  ASSERT_TRUE(full->Close().ok());
  const int fd = open("/dev/full", O_WRONLY);
  ASSERT_GE(fd, 0);
  const int out = dup(STDOUT_FILENO);
  dup2(fd, STDOUT_FILENO);
  FileWriter writer = FileWriter::StandardOutput();
  const Status written = writer.Write(std::string(1 << 20, 'x'));
  dup2(out, STDOUT_FILENO);
  close(out);
  close(fd);
  EXPECT_EQ(written.code(), Code::kResourceExhausted);
  EXPECT_THAT(written.message(), HasSubstr("No space left on device; free space"));
}

// --- what the collector sends

class Counting final : public Exporter {
 public:
  Status Write(const Observation& o) override {
    names.push_back(o.def->key.name);
    return Status::Ok();
  }
  Status Finish() override { return Status::Ok(); }
  std::vector<std::string> names;
};

v1::ReadRecordsResponse OneRecord(std::uint32_t activation) {
  v1::ReadRecordsResponse message;
  v1::StatColumns& stats = *message.mutable_records()->mutable_stats();
  stats.add_activation(activation);
  stats.add_layout(0);
  stats.add_step(3);
  stats.add_order(0);
  for (auto* column : {stats.mutable_nan(), stats.mutable_pos_inf(), stats.mutable_neg_inf(),
                       stats.mutable_zero(), stats.mutable_neg()})
    column->Add(0);
  stats.add_pos(1);
  stats.add_has_finite(true);
  for (auto* column : {stats.mutable_min(), stats.mutable_max(), stats.mutable_mean(),
                       stats.mutable_std(), stats.mutable_l1(), stats.mutable_l2()})
    column->Add(1);
  stats.add_hash(1);
  return message;
}

TEST(RecordsDecoder, KeepsDefinitionsByRankAndRefusesWhatIsNotDefined) {
  v1::ReadRecordsResponse message = OneRecord(0);
  v1::ActivationDef& def = *message.mutable_records()->add_activations();
  def.set_name("fc");
  def.set_kind(v1::KIND_OUTPUT);
  def.set_mode(v1::MODE_TRAIN);
  v1::Layout& layout = *message.mutable_records()->add_layouts();
  layout.set_dtype(v1::DTYPE_F32);
  layout.add_shape(1);
  Counting out;
  RecordsDecoder decoder(out);
  ASSERT_TRUE(decoder.Take(message).ok());
  ASSERT_TRUE(decoder.Take(OneRecord(0)).ok());
  EXPECT_THAT(out.names, ElementsAre("fc", "fc"));
  EXPECT_EQ(decoder.records(), 2u);
  EXPECT_EQ(decoder.steps()->first, 3u);
  EXPECT_EQ(decoder.Take(OneRecord(1)).code(), Code::kDataLoss);
  v1::ReadRecordsResponse other_rank = OneRecord(0);
  other_rank.set_rank(1);
  EXPECT_EQ(decoder.Take(other_rank).code(), Code::kDataLoss) << "definitions are those of a rank";
}

}  // namespace
}  // namespace statcollect::client
