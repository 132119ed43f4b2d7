// Sentences to begin with, in the language of the model: words of several senses, with the sense that a reader sees in each
// sentence, which the page compares with what the model finds; and sentences to be scored.

const example = (word, senses) => {
  const entries = Object.entries(senses);
  return {
    word,
    names: entries.map(([name]) => name),
    text: entries.flatMap(([, sentences]) => sentences).join("\n"),
    labels: entries.flatMap(([, sentences], sense) => sentences.map(() => sense)), // one occurrence per sentence
  };
};

const ENGLISH = {
  words: [
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
  ],
  missed: [
    example("crane", {
      "a machine": ["The crane lifted the steel beams.", "A crane stood over the building site.", "The workers moved the load with a crane."],
      "a bird": ["The crane built its nest in the marsh.", "A crane flew over the lake.", "The crane is a bird with long legs."],
    }),
    example("match", {
      "for fire": ["He lit a match and looked around.", "She struck a match to light the candle.", "The match burned his fingers."],
      "a game": ["They won the match by two goals.", "The match was played in the rain.", "He scored in the last match of the season."],
    }),
  ],
  surprise: { text: "He sat on the bank of the river and watched the water.\nThe bank of England raised its interest umbrellas.", place: 4 }, // "bank"
};

const CHINESE = {
  words: [
    example("苹果", {
      "a fruit": ["她洗了一个苹果给孩子吃。", "树上的苹果熟了。", "他每天吃一个苹果和一根香蕉。"],
      "a company": ["苹果发布了新的手机。", "苹果的股票今年上涨了。", "他在苹果公司工作。"],
    }),
    example("病毒", {
      "of a disease": ["这种病毒会引起发烧和咳嗽。", "医生说病毒已经传染给了很多人。", "科学家在研究病毒的疫苗。"],
      "a program": ["他的电脑中了病毒。", "这个软件可以清除病毒。", "黑客用病毒破坏了网站的系统。"],
    }),
    example("包袱", {
      "a bundle": ["老人背着一个包袱走在路上。", "她打开包袱，拿出几件衣服。", "他把包袱放在桌子上。"],
      "a burden": ["债务成了公司的沉重包袱。", "他放下思想包袱，轻松参加比赛。", "历史的包袱影响了改革。"],
    }),
    example("杜鹃", {
      "a flower": ["山上的杜鹃开了。", "她在花园里种了几株杜鹃。", "红色的杜鹃花非常美丽。"],
      "a bird": ["杜鹃在树上叫。", "杜鹃把蛋产在别的鸟的巢里。", "清晨听到杜鹃的叫声。"],
    }),
    example("打", {
      "hit": ["他生气地打了弟弟。", "警察说有人被打伤了。", "你不能打人。"],
      "call": ["她给妈妈打电话。", "他每天晚上打电话回家。", "请你明天给我打个电话。"],
    }),
  ],
  missed: [],
  surprise: { text: "他坐在河边看着水里的鱼。\n中国人民银行提高了存款雨伞。", place: 7 }, // 水
};

const LANGUAGES = { han: CHINESE }; // by the tokenizer of a model; all others are English

// { words, missed: words whose senses the model of the package does not tell apart }
export function examplesFor({ tokenizer }) {
  return LANGUAGES[tokenizer] ?? ENGLISH;
}

// { text, place }: sentences, and a word of the first one
export function surpriseFor(info) {
  return examplesFor(info).surprise;
}

// Whether a text is an example in another language than the model's: it is in the address after the model was changed.
export function isForeign(info, text) {
  const others = [ENGLISH, CHINESE].filter((language) => language !== examplesFor(info));
  return others.some(({ words, missed, surprise }) => [...words, ...missed, surprise].some((one) => one.text === text));
}
