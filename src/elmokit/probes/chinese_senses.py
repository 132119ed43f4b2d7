"""Fifteen Chinese words of several senses, each in three everyday sentences.

Output: `CHINESE_TRIPLES`, as `SENSE_TRIPLES` of `senses.py`: `first` and `second` use the word in one sense, `other` in
another. The sentences were written before any Chinese model was trained, and must not be adapted to one. The word is
the same part of speech in all three, and the sentences have no other content word in common.
"""

from __future__ import annotations

from elmokit.probes.senses import SenseTriple

CHINESE_TRIPLES = (
    SenseTriple(
        "苹果",
        "妈妈在市场上买了几个苹果，洗干净放在盘子里。",
        "孩子每天早上吃一个苹果，再喝一杯牛奶。",
        "许多年轻人都在等苹果发布下一款手机。",
    ),
    SenseTriple(
        "意思",
        "老师让我们解释这个成语的意思。",
        "他听不懂那句方言的意思。",
        "这点小礼物只是我的一点意思，请您收下。",
    ),
    SenseTriple(
        "打",
        "他生气的时候打了弟弟一下。",
        "保安说有人用棍子打伤了路人。",
        "她下班以后给父母打了电话。",
    ),
    SenseTriple(
        "包袱",
        "他一直觉得这笔债是沉重的包袱，压得他喘不过气。",
        "队员们放下思想包袱，反而赢了比赛。",
        "老人背着一个蓝布包袱走进了村子。",
    ),
    SenseTriple(
        "杜鹃",
        "山坡上开满了红色的杜鹃，游人纷纷拍照。",
        "阳台上那盆杜鹃该浇水了。",
        "清晨林子里传来杜鹃的叫声。",
    ),
    SenseTriple(
        "黄牛",
        "农民牵着黄牛下地犁田。",
        "那头黄牛在河边吃草。",
        "演唱会的票被黄牛抢光了，价格翻了三倍。",
    ),
    SenseTriple(
        "病毒",
        "这种病毒通过飞沫传播，会引起发烧。",
        "科学家分离出了新的病毒，正在研制疫苗。",
        "我的电脑中了病毒，文件都打不开了。",
    ),
    SenseTriple(
        "水分",
        "天气太干，土壤里的水分很快蒸发了。",
        "西瓜的水分很多，夏天吃最解渴。",
        "审计员发现公司报表里的水分不少，利润是假的。",
    ),
    SenseTriple(
        "门槛",
        "他进屋时被门槛绊了一下。",
        "老房子的门槛很高，小孩跨不过去。",
        "银行降低了贷款的门槛，小企业也能申请。",
    ),
    SenseTriple(
        "后门",
        "小偷从厨房的后门溜了进去。",
        "请迟到的同学从教室的后门进来。",
        "他靠走后门给儿子找了工作。",
    ),
    SenseTriple(
        "算盘",
        "账房先生拨着算盘核对数目。",
        "爷爷小时候用算盘学过加减法。",
        "他心里打着自己的算盘，不肯和我们合作。",
    ),
    SenseTriple(
        "泡沫",
        "啤酒倒得太快，杯口全是泡沫。",
        "洗发水搓出了很多泡沫。",
        "专家担心房价的泡沫会突然破裂。",
    ),
    SenseTriple(
        "下海",
        "渔民天不亮就下海打鱼。",
        "台风来了，船只都不能下海。",
        "他九十年代辞职下海，办了一家服装厂。",
    ),
    SenseTriple(
        "单位",
        "牛顿是力的单位，学生要记住。",
        "这张表里重量的单位是千克。",
        "他的单位今天放假，不用上班。",
    ),
    SenseTriple(
        "行",
        "请把这一行字抄下来。",
        "这首诗的第三行写得最好。",
        "他在保险这一行干了二十年。",
    ),
)
