// Words of several senses, with the sense that a reader sees in each sentence. The page compares what the model finds with
// it. The hard ones are not told apart by the model that comes with elmokit.

const example = (word, senses) => {
  const entries = Object.entries(senses);
  return {
    word,
    names: entries.map(([name]) => name),
    text: entries.flatMap(([, sentences]) => sentences).join("\n"),
    labels: entries.flatMap(([, sentences], sense) => sentences.map(() => sense)), // one occurrence per sentence
  };
};

const EXAMPLES = [
  example("cell", {
    "of a body": ["Every cell contains a nucleus.", "The virus enters the cell and copies itself.", "The cell wall is made of proteins."],
    "of a prison": ["The guard locked him in his cell.", "The prisoner slept on the floor of his cell.", "She spent the night in a prison cell."],
  }),
  example("bank", {
    "for money": ["The bank raised its interest rates.", "He borrowed the money from a bank in London.", "She works for a large investment bank."],
    "of a river": ["We sat on the bank of the river.", "They fished from the muddy bank of the stream.", "Trees grew along the far bank of the lake."],
  }),
  example("play", {
    "a drama": ["The play was performed at the theatre in 1923.", "She wrote her first play for the London stage.", "Critics praised the play and its actors."],
    "have fun": ["The children play in the garden after school.", "They play football in the street.", "The boys were allowed to play outside."],
  }),
  example("spring", {
    "a season": ["The birds return every spring.", "The snow melts in early spring.", "We plant the garden in spring."],
    "a source of water": ["They drank water from a spring in the rock.", "A spring of clear water rises in the hills.", "The stream begins at a spring in the forest."],
  }),
  example("right", {
    "not left": ["He broke his right arm in the fall.", "She writes with her right hand.", "He was wounded in the right leg."],
    "a freedom": ["Women won the right to vote in 1920.", "Everyone has the right to a fair trial.", "The law gives workers the right to strike."],
  }),
];

const HARD_EXAMPLES = [
  example("crane", {
    "a machine": ["The crane lifted the steel beams.", "A crane stood over the building site.", "The workers moved the load with a crane."],
    "a bird": ["The crane built its nest in the marsh.", "A crane flew over the lake.", "The crane is a bird with long legs."],
  }),
  example("match", {
    "for fire": ["He lit a match and looked around.", "She struck a match to light the candle.", "The match burned his fingers."],
    "a game": ["They won the match by two goals.", "The match was played in the rain.", "He scored in the last match of the season."],
  }),
];

const CHINESE_EXAMPLES = [
  example("苹果", {
    "水果": ["她削了一个苹果给孩子吃。", "树上的苹果已经熟了。", "这种苹果又脆又甜。"],
    "公司": ["苹果公布了新一代手机的价格。", "苹果的股价昨天大幅下跌。", "他在苹果担任软件工程师。"],
  }),
  example("意思", {
    "含义": ["这个词的意思很难解释。", "请说明这句话的意思。", "他不明白那个符号的意思。"],
    "趣味": ["这部电影很有意思。", "和他聊天真有意思。", "我觉得这本小说没有意思。"],
  }),
  example("包袱", {
    "行李": ["老人背着包袱走在山路上。", "她打开包袱，取出几件衣服。", "他把干粮包进包袱里带走。"],
    "负担": ["历史的包袱使改革难以进行。", "他放下了思想包袱，轻松上场。", "债务成了这家企业沉重的包袱。"],
  }),
];

const HARD_CHINESE_EXAMPLES = [
  example("打", {
    "殴打": ["父亲生气时打了儿子。", "他被人打伤了头部。", "两个人在街上打了一架。"],
    "通话": ["她每天晚上给母亲打电话。", "请你明天打电话给我。", "他打电话通知了医院。"],
  }),
  example("杜鹃", {
    "鸟": ["杜鹃把蛋产在别的鸟的巢里。", "春天的树林里有杜鹃在叫。", "杜鹃是一种吃毛虫的鸟。"],
    "花": ["山上的杜鹃开得一片火红。", "园中种着杜鹃和山茶。", "这种杜鹃的花是白色的。"],
  }),
];

// Whether a text is an example of another language than the model's. It is in the address after another model was chosen.
export function isForeign(info, text) {
  return examplesOf({ tokenizer: info.tokenizer === "han" ? "treebank" : "han" }).flat().some((example) => example.text === text);
}

// The examples of the language that a model reads: those to open with, and hard ones.
export function examplesOf(info) {
  return info.tokenizer === "han" ? [CHINESE_EXAMPLES, HARD_CHINESE_EXAMPLES] : [EXAMPLES, HARD_EXAMPLES];
}
